"""What loops buy: the cross-entropy of every exit, the gain from depth, and what happens beyond the trained loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.looped import Trace
from loopverify.objectives.terms import exit_cross_entropy

__all__ = ["DepthUse", "OvershootPoint", "depth_use", "exit_losses", "overshoot"]


@dataclass(frozen=True, kw_only=True)
class DepthUse:
    """What a run gains from its loops."""

    losses: tuple[float, ...]
    """Cross-entropies of the exits 1..K, nats per token."""

    @property
    def gain(self) -> float:
        """CE(1) − CE(K), nats per token; near 0 the model does not use its loops, and halting early is trivial."""
        return self.losses[0] - self.losses[-1]


@dataclass(frozen=True, kw_only=True)
class OvershootPoint:
    """A run of K loops."""

    loops: int
    """K."""
    ratio: float
    """K / r0; models are compared at equal ratios, never at equal K."""
    loss: float
    """Cross-entropy of the last exit, nats per token."""


def exit_losses(trace: Trace, targets: Tensor) -> list[float]:
    """Cross-entropies (nats per token) of the exits 1..K of `trace` against targets (B, T) int64.

    Raises:
        InputError: targets are not int64 of the shape of the tokens.
    """
    with torch.no_grad():
        return _values([exit_cross_entropy(trace, targets, loop) for loop in range(1, trace.loops + 1)])


def depth_use(trace: Trace, targets: Tensor) -> DepthUse:
    """Depth use of one run, from the losses of its exits. Raises as `exit_losses`."""
    return DepthUse(losses=tuple(exit_losses(trace, targets)))


def overshoot(trace: Trace, targets: Tensor) -> tuple[OvershootPoint, ...]:
    """CE(K) of runs of K = 1..N loops, from one trace of N loops: a run of K is the beginning of a longer one.

    Unlike in `exit_losses`, every loss is that of a last exit, which some models read differently from an early one.

    Raises:
        InputError: targets are not int64 of the shape of the tokens.
    """
    runs = range(1, trace.loops + 1)
    with torch.no_grad():
        losses = _values([exit_cross_entropy(trace.first(loops), targets, loops) for loops in runs])
    r0 = trace.model.trained_loops
    return tuple(
        OvershootPoint(loops=loops, ratio=loops / r0, loss=loss) for loops, loss in zip(runs, losses, strict=True)
    )


def _values(losses: Sequence[Tensor]) -> list[float]:
    values: list[float] = torch.stack(list(losses)).tolist()  # one transfer from the device
    return values
