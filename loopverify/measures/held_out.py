"""Measuring a model over held-out batches: input checks, runs and pooling.

Shapes: B batch, T tokens. A batch is a pair (tokens, targets), both (B, T) int64; a target of -100 is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from loopverify._version import __version__
from loopverify.arguments import IGNORE, check_kind
from loopverify.auditing.gradients import working_dtype
from loopverify.errors import InputError
from loopverify.looped import Looped, Trace, unroll
from loopverify.readonly import untouched

__all__ = ["Batches", "Sample", "batch_pairs", "check_looped", "over_batches", "perplexity", "pooled"]

Batches = Iterable[tuple[Tensor, Tensor]]
"""Pairs (tokens, targets), each (B, T) int64."""
_Row = TypeVar("_Row")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What a number was measured on."""

    model: str
    trained_loops: int
    """r0."""
    loops: int
    """K, the loops of every run."""
    sequences: int
    counts: tuple[int, ...]
    """Number of targets that count, batch by batch."""
    dtype: str
    """The coarsest dtype among states, parameters and autocast."""
    device: str
    seed: int
    """Seed of the random numbers that the model draws in evaluation mode."""
    versions: Mapping[str, str]

    @property
    def tokens(self) -> int:
        """Number of targets that count: the n of every mean over tokens."""
        return sum(self.counts)


def over_batches(
    model: Looped, batches: Batches, loops: int | None, measure: Callable[[Trace, Tensor], _Row], *, seed: int = 0
) -> tuple[Sample, list[_Row]]:
    """Run the model for `loops` loops on every batch and apply `measure(trace, targets)`; the model is left unchanged.

    The model runs in evaluation mode, and every run starts from the random numbers of `seed`.

    Args:
        loops: K; the trained loops when omitted.

    Raises:
        InputError: `model` is not a Looped, there are no batches, a batch is not a pair (tokens, targets), or `loops`
            is invalid.
    """
    pairs = batch_pairs(model, batches)
    rows, trace = [], None
    for tokens, targets in pairs:
        with untouched(model, seed):
            # Copies, so that no part of the model can change the caller's tensors.
            trace = unroll(model, tokens.clone(), loops)
            rows.append(measure(trace, targets.clone()))
    assert trace is not None
    return _sample(trace, pairs, seed), rows


def batch_pairs(model: Looped, batches: Batches) -> list[tuple[Tensor, Tensor]]:
    """The batches as a list, after checks.

    Raises:
        InputError: as `over_batches`.
    """
    check_looped(model)
    check_kind("batches", batches, Iterable, "pairs of tensors (tokens, targets)")
    pairs = list(batches)
    if not pairs:
        raise InputError("no batches; expected at least one pair (tokens, targets). Was an iterator already consumed?")
    for place, pair in enumerate(pairs):
        _check_pair(pair, f"batch {place}", model.vocab_size)
    return pairs


def check_looped(model: object) -> None:
    """Raise an InputError unless `model` is a Looped."""
    if not isinstance(model, Looped):
        raise InputError(
            f"got a {type(model).__name__} to measure; expected a loopverify.Looped. "
            "Describe the model with Looped(embed=..., step=..., readout=..., trained_loops=...)"
        )


def pooled(rows: Sequence[Sequence[float]], weights: Sequence[int]) -> tuple[float, ...]:
    """Means over batches, column by column, weighted by the number of tokens of each batch."""
    total = sum(weights)
    columns = zip(*rows, strict=True)
    return tuple(math.fsum(w * x for w, x in zip(weights, column, strict=True)) / total for column in columns)


def perplexity(nats: float) -> float:
    """exp(cross-entropy in nats per token); infinite where it exceeds the range of a float."""
    return math.exp(nats) if nats < 709 else math.inf if nats == nats else math.nan


def _check_pair(pair: object, name: str, vocab_size: int | None) -> None:
    if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(part, Tensor) for part in pair)):
        raise InputError(
            f"{name} is a {type(pair).__name__}; expected a pair of tensors (tokens, targets). "
            "A single batch is passed as [(tokens, targets)]"
        )
    tokens, targets = pair
    if targets.dtype != torch.int64 or targets.shape != tokens.shape:
        raise InputError(
            f"the targets of {name} are {targets.dtype} {tuple(targets.shape)}; expected int64 {tuple(tokens.shape)}, "
            f"the next token of every token ({IGNORE} leaves a token out)"
        )
    counted = targets[targets != IGNORE]
    if not counted.numel():
        raise InputError(f"the targets of {name} are all {IGNORE}; expected at least one that counts")
    low, high = (int(bound) for bound in counted.aminmax())
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        expected = "tokens >= 0" if vocab_size is None else f"0..{vocab_size - 1} for a vocabulary of {vocab_size}"
        raise InputError(f"the targets of {name} span {low}..{high}; expected {expected} ({IGNORE} leaves a token out)")


def _sample(trace: Trace, pairs: Sequence[tuple[Tensor, Tensor]], seed: int) -> Sample:
    return Sample(
        model=trace.model.name,
        trained_loops=trace.model.trained_loops,
        loops=trace.loops,
        sequences=sum(len(tokens) for tokens, _ in pairs),
        counts=tuple(int((targets != IGNORE).sum()) for _, targets in pairs),
        dtype=str(working_dtype(trace)).removeprefix("torch."),
        device=str(trace.states[0].device),
        seed=seed,
        versions={"loopverify": __version__, "torch": torch.__version__},
    )
