"""Decoding with a cache shows what the full forward shows: at every depth, in any chunks, whatever has left before."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopverify.checks.conformance import CHECKS
from loopverify.generation import Decoder, EarlyExit
from loopverify.generation.prompts import padded
from loopverify.models import READOUTS, RECURRENCES, LoopedTransformer, TransformerConfig

V = 19


def transformer(**changes: Any) -> LoopedTransformer:
    torch.manual_seed(3)
    settings = {"vocab_size": V, "d_model": 16, "heads": 2, "d_ff": 24, "init_std": 0.4, **changes}
    return LoopedTransformer(TransformerConfig(**settings)).eval()


KINDS = [
    {"readout": readout, "sandwich_norm": sandwich, **fields}
    for (readout, fields), sandwich in itertools.product(
        itertools.product(READOUTS, RECURRENCES.values()), (False, True)
    )
    if fields.get("inter_loop_norm") != "shared" or readout in ("rmsnorm", "layernorm")
]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Up to four prompts of any lengths as one batch, and its mask, each (B, T)."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return padded([torch.randint(V, (length,), generator=random) for length in lengths], V)


@torch.no_grad()
def every_exit(module: LoopedTransformer, tokens: Tensor, mask: Tensor, loops: int) -> Tensor:
    """The logits of all exits of the full forward, (B, T, K, V)."""
    state, context = module.embed_masked(tokens, mask)
    exits = []
    for loop in range(1, loops + 1):
        state = module.step(state, context, loop)
        exits.append(module.readout(state, context, loop, loops))
    return torch.stack(exits, 2)


def assert_close(found: Tensor, expected: Tensor, limit: float) -> None:
    """Equal to `limit`, relative to the largest logit of each token."""
    assert ((found - expected).abs().amax(-1) <= limit * expected.abs().amax(-1)).all()


@pytest.mark.parametrize(
    ("dtype", "init_std", "limit"),
    [
        (torch.float32, 0.02, 1e-5),  # as initialized
        (torch.float64, 0.4, 1e-11),  # far from initialization, where loops amplify what rounding does
    ],
    ids=["float32", "float64"],
)
@pytest.mark.parametrize("chunks", ["one token each", "whole", "cut anywhere"])
@pytest.mark.parametrize("loops", [1, 2, 3, 4])
@settings(max_examples=6)
@given(data=st.data())
def test_cached_equals_the_full_forward(
    loops: int, chunks: str, dtype: torch.dtype, init_std: float, limit: float, data: st.DataObject
) -> None:
    module = transformer(**data.draw(st.sampled_from(KINDS)), init_std=init_std).to(dtype)
    tokens, mask = data.draw(batches())
    inner = range(1, tokens.shape[1])
    cuts = {
        "one token each": set(inner),
        "whole": set(),
        "cut anywhere": data.draw(st.sets(st.sampled_from(inner))) if inner else set(),
    }[chunks]
    decoder = Decoder(module, len(tokens), loops)
    bounds = itertools.pairwise([0, *sorted(cuts), tokens.shape[1]])
    shown = torch.cat([decoder.extend(tokens[:, a:b], mask[:, a:b]) for a, b in bounds], 1)
    assert_close(shown[mask], every_exit(module, tokens, mask, loops)[mask][:, -1], limit)
    assert decoder.held.cache.slots == loops * 2
    assert decoder.held.executed == loops * tokens.numel()


@pytest.mark.parametrize("loops", [1, 2, 3, 4])
@settings(max_examples=20)
@given(data=st.data())
def test_neither_rows_that_stop_nor_tokens_that_leave_early_are_seen_by_others(loops: int, data: st.DataObject) -> None:
    module = transformer(**data.draw(st.sampled_from(KINDS))).double()
    tokens, mask = data.draw(batches())
    new = data.draw(st.integers(1, 6))
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    following = torch.randint(V, (len(tokens), new), generator=random)
    whole, real = torch.cat([tokens, following], 1), torch.cat([mask, torch.ones_like(following, dtype=torch.bool)], 1)
    full = every_exit(module, whole, real, loops)[:, -new:]
    a, b = full.topk(2).values.unbind(-1)
    threshold = float((a - b).quantile(data.draw(st.floats(0.2, 0.95)))) + 1e-6
    sure = (a - b > threshold).int()
    sure[..., -1] = 1
    expected = sure.argmax(-1)

    decoder = Decoder(module, len(tokens), loops, EarlyExit(threshold=threshold, missing="recompute"))
    decoder.extend(tokens, mask)
    rows = torch.arange(len(tokens))
    for n in range(new):
        step = decoder.step(following[rows, n])
        assert step.exits.tolist() == (expected[rows, n] + 1).tolist()
        assert_close(step.logits, full[rows, n, expected[rows, n]], 1e-10)
        staying = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
        if staying.any():
            decoder.keep(staying)
            rows = rows[staying]


@pytest.mark.parametrize(
    "check",
    [
        "cached_decode",
        "second_prompt",
        "chunked_prefill",
        "cache_positions",
        "cached_batch",
        "cache_slots",
        "last_loop_cache",
    ],
)
def test_the_checks_of_caches_pass(check: str) -> None:
    result = CHECKS[check].run(transformer().looped())
    assert result.status == "passed", str(result)
