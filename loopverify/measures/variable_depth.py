"""Cross-entropy and perplexity at every depth, in two ways (Sharma & Vu 2026, Tables 5, 11, 14, Figures 1 and 7).

- *exits*: exits 1..r0 of one run of the trained loops. An early exit is read as an intermediate state.
- *runs*: the last exit of runs of K loops, for K up to and beyond r0. Each is read as a final state.

Both agree if the readout treats all exits alike, and differ if it normalizes the last exit only.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from loopverify.auditing.depth import exit_losses, overshoot
from loopverify.errors import InputError
from loopverify.looped import Looped, Trace
from loopverify.measures.held_out import Batches, Sample, check_looped, over_batches, perplexity, pooled

__all__ = ["DepthPoint", "VariableDepth", "variable_depth"]


@dataclass(frozen=True, kw_only=True)
class DepthPoint:
    """A model at one depth."""

    loops: int
    ratio: float
    """Loops over trained loops, K/r0; overshoot if above 1."""
    loss: float
    """Cross-entropy, nats per token."""

    @property
    def perplexity(self) -> float:
        """exp(loss), per token."""
        return perplexity(self.loss)


@dataclass(frozen=True, kw_only=True)
class VariableDepth:
    """A model at every depth, measured in both ways."""

    exits: tuple[DepthPoint, ...]
    """Exits 1..r0 of one run of the trained loops."""
    runs: tuple[DepthPoint, ...]
    """Last exits of runs of 1..N loops."""
    sample: Sample

    @property
    def gap(self) -> float:
        """CE(1) − CE(r0) of the exits, nats per token; near 0 if the first exit is as good as the last (Table 11)."""
        return self.exits[0].loss - self.exits[-1].loss

    @property
    def run_gap(self) -> float:
        """CE(1) − CE(r0) of the runs, nats per token."""
        return self.runs[0].loss - self.runs[len(self.exits) - 1].loss

    @property
    def perplexity_change(self) -> float:
        """PPL(r0) − PPL(1) of the exits; negative if depth helps (Table 5)."""
        return self.exits[-1].perplexity - self.exits[0].perplexity


def variable_depth(model: Looped, batches: Batches, loops: int | None = None, *, seed: int = 0) -> VariableDepth:
    """Measure a model at all depths, from one run of N loops per batch.

    Losses are NaN from the depth on at which the states overflow.

    Args:
        batches: pairs (tokens, targets), each (B, T) int64.
        loops: N, at least the trained loops; twice the trained loops when omitted (Figure 7: K = 8 for r0 = 4).

    Raises:
        InputError: there are fewer loops than the trained ones, or the batches are invalid.
    """
    check_looped(model)
    r0 = model.trained_loops
    loops = 2 * r0 if loops is None else loops
    if loops < r0:
        raise InputError(f"loops is {loops}; expected at least the trained loops, {r0}, whose exits are measured")

    def measure(trace: Trace, targets: Tensor) -> list[float]:
        exits = exit_losses(trace.first(r0), targets)
        return [*exits, *(point.loss for point in overshoot(trace, targets))]

    sample, rows = over_batches(model, batches, loops, measure, seed=seed)
    losses = pooled(rows, sample.counts)
    return VariableDepth(exits=_points(losses[:r0], r0), runs=_points(losses[r0:], r0), sample=sample)


def _points(losses: tuple[float, ...], r0: int) -> tuple[DepthPoint, ...]:
    return tuple(DepthPoint(loops=k, ratio=k / r0, loss=loss) for k, loss in enumerate(losses, start=1))
