"""Cached generation against running the whole sequence for every new token, and early exits against full depth.

Random weights: what is timed is a schedule, with a threshold that everyone passes at loop 1, or nobody at all.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.contest import Contest
from bench.shapes import Shape
from loopverify.generation import MISSING, EarlyExit, generate
from loopverify.looped import unroll
from loopverify.models import LoopedTransformer

ROWS, PROMPT, NEW = 4, 32, 8


def _prompts(shape: Shape, device: str) -> Tensor:
    return torch.randint(shape.vocab_size, (ROWS, PROMPT), generator=torch.Generator().manual_seed(1)).to(device)


def _uncached(module: LoopedTransformer, tokens: Tensor) -> Tensor:
    """Greedy generation without a cache: the whole sequence is computed again for every token."""
    model = module.looped()
    for _ in range(NEW):
        last = model.readout(unroll(model, tokens).states[-1][:, -1:], None, 4, 4)
        tokens = torch.cat([tokens, last.argmax(-1)], 1)
    return tokens


def _shape_label(shape: Shape) -> str:
    return f"{shape.preset.name}: {ROWS} prompts of {PROMPT} tokens, {NEW} new ones, V = {shape.vocab_size:,}"


def test_cached_generation(contest: Contest, large: Shape, device: str) -> None:
    module, prompts = large.module("rmsnorm", device).eval(), _prompts(large, device)
    contest(
        partial(generate, module, prompts, NEW),
        {"without a cache": partial(_uncached, module, prompts)},
        label="cached generation at full depth",
        shape=_shape_label(large),
        rounds=large.rounds,
    )


@pytest.mark.parametrize(
    ("leaving", "missing"), [*(("all at loop 1", missing) for missing in MISSING), ("none", "recompute")]
)
def test_early_exits(contest: Contest, large: Shape, device: str, missing: Any, leaving: str) -> None:
    module, prompts = large.module("rmsnorm", device).eval(), _prompts(large, device)
    threshold = -math.inf if leaving != "none" else math.inf
    rule = EarlyExit(threshold=threshold, score="state_change", missing=missing)
    contest(
        partial(generate, module, prompts, NEW, early_exit=rule),
        {"full depth": partial(generate, module, prompts, NEW)},
        label=f"generation with early exits, {leaving}, missing keys by {missing}",
        shape=_shape_label(large),
        rounds=large.rounds,
    )
