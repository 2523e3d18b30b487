"""The terms of Lemma 2 on a model, over a run long enough to settle (Sharma & Vu 2026, Table 12 and Figure 3).

Everything is in rms units, as in the table: a_rad = ⟨u, b⟩/d, rms(v) = ||v||_2/√d. The text's "ã" is d·a_rad. Means are
taken over tokens first, then over loops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

from loopverify.auditing.ledger import Update, updates
from loopverify.errors import InputError
from loopverify.looped import Looped, Trace
from loopverify.measures.held_out import Batches, Sample, over_batches, pooled
from loopverify.theory import log_slope, polar

__all__ = ["Decomposition", "LoopUpdate", "decompose"]

PAPER_LOOPS, PAPER_FIRST = 30, 10
"""Table 12 runs 30 loops and averages from the tenth on, "after the initial transient"."""


@dataclass(frozen=True, kw_only=True)
class LoopUpdate:
    """How one loop moved the state. Means over tokens."""

    loop: int
    """k: the step from H_{k-1} to H_k."""
    scale: float
    """rms(H_{k-1}), the scale before the loop."""
    inverse_scale: float
    """Mean over tokens of 1/rms(H_{k-1}), to which Lemma 2 compares the angular step; infinite if a token is zero."""
    update: Update


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """The radial and turning parts of a run's updates, and their effect on the state."""

    loops: tuple[LoopUpdate, ...]
    """Loops 1..K."""
    first: int
    """The first loop of the averages."""
    channels: int
    """d."""
    a_rad: float
    """Mean radial part ⟨u, b⟩/d over the settled loops."""
    b_perp: float
    """Mean rms of the turning part."""
    b_rms: float
    """Mean rms of the whole update."""
    growth: float
    """Mean growth s_k − s_{k-1} per loop."""
    angular_slope: float | None
    """Slope of log angular step in log 1/s over the settled loops: 1 where steps shrink like 1/s (Lemma 2). None if
    scale or direction do not change."""
    angular_correlation: float | None
    """Pearson correlation of the same two logarithms."""
    sample: Sample

    @property
    def ratio(self) -> float:
        """rms(b)/|a_rad|, the table's last column: 1 for a purely radial update."""
        return self.b_rms / abs(self.a_rad) if self.a_rad else math.inf

    @property
    def d_a_rad(self) -> float:
        """d·a_rad, the text's "ã": the inner product ⟨u, b⟩ of a direction of rms 1 with the update."""
        return self.channels * self.a_rad

    @property
    def growth_gap(self) -> float:
        """|growth − a_rad| / |growth|: the share of the growth that a_rad alone (Lemma 2, first order) leaves out."""
        return abs(self.growth - self.a_rad) / abs(self.growth) if self.growth else math.inf if self.a_rad else 0.0

    @property
    def settled(self) -> tuple[LoopUpdate, ...]:
        """The loops that are averaged."""
        return self.loops[self.first - 1 :]


def decompose(
    model: Looped, batches: Batches, loops: int = PAPER_LOOPS, *, first: int = PAPER_FIRST, seed: int = 0
) -> Decomposition:
    """Split the update of every loop of a long run into its radial and its turning part.

    Args:
        batches: pairs (tokens, targets), each (B, T) int64; every token counts here, whatever its target.
        loops: K.
        first: the first settled loop, 1..K.

    Raises:
        InputError: `first` is out of range, a state is not finite, or the batches are invalid.
    """
    if not 1 <= first <= loops:
        raise InputError(f"first is {first}; expected a loop 1..{loops} of the run, the first that is averaged")
    sample, rows = over_batches(model, batches, loops, _measure, seed=seed)
    weights = [tokens for tokens, _, _ in rows]
    by_loop = [pooled(batches_of_loop, weights) for batches_of_loop in zip(*(row for _, _, row in rows), strict=True)]
    records = tuple(
        LoopUpdate(loop=k, scale=scale, inverse_scale=inverse, update=_update(values))
        for k, (scale, inverse, *values) in enumerate(by_loop, start=1)
    )
    settled = [record.update for record in records[first - 1 :]]
    slope, correlation = _angular_law(records[first - 1 :])
    return Decomposition(
        loops=records,
        first=first,
        channels=rows[0][1],
        a_rad=_mean([update.a_rad for update in settled]),
        b_perp=_mean([update.b_perp for update in settled]),
        b_rms=_mean([update.b_rms for update in settled]),
        growth=_mean([update.growth for update in settled]),
        angular_slope=slope,
        angular_correlation=correlation,
        sample=sample,
    )


def _measure(trace: Trace, targets: Tensor) -> tuple[int, int, list[list[float]]]:
    """Number of tokens, channels, and for each loop its scales and its update as numbers."""
    finite = torch.stack([state.isfinite().all() for state in trace.states]).tolist()
    if False in finite:
        overflow = finite.index(False)
        raise InputError(f"H_{overflow} is not finite; expected a run that stays finite. Decompose fewer loops")
    scales = torch.stack([polar.scale(state) for state in trace.states[:-1]]).flatten(1)
    starts = torch.stack([scales.mean(1), scales.reciprocal().mean(1)], -1).tolist()
    moves = [[*start, *astuple(update)] for start, update in zip(starts, updates(trace), strict=True)]
    return trace.tokens.numel(), trace.states[0].shape[-1], moves


def _update(values: Sequence[float]) -> Update:
    return Update(**dict(zip((field.name for field in fields(Update)), values, strict=True)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _angular_law(loops: Sequence[LoopUpdate]) -> tuple[float | None, float | None]:
    """Slope and correlation of log angular step with respect to log 1/s, over loops."""
    inverse = [loop.inverse_scale for loop in loops]
    steps = torch.tensor([loop.update.angular_step for loop in loops], dtype=torch.float64)
    # A change below 1e-6 over all loops is rounding of float32, not a law.
    changes = len(loops) > 1 and max(inverse) > (1 + 1e-6) * min(inverse) and bool((steps > 1e-6).all())
    if not changes or not all(map(math.isfinite, inverse)):
        return None, None
    logs = torch.stack([torch.tensor(inverse, dtype=torch.float64).log(), steps.log()])
    correlation = float(torch.corrcoef(logs)[0, 1])
    return float(log_slope(inverse, steps)), correlation if correlation == correlation else None
