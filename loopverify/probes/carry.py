"""What the recurrence does to a state variable: amplify, carry, damp or remove it, measured on the step as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.theory import polar
from loopverify.theory.activity import CarryKind, carry, carry_kind

__all__ = ["LoopCarry", "mean_carry", "over_loops", "scale_carry"]

ALPHAS = (2.0**10, 2.0**20)
"""Powers of two, by which a float is scaled without rounding. In units in which the state is as large as the update."""
SMALL_ALPHAS = (2.0, 4.0)
"""For a step that overflows at `ALPHAS`: float16, or a block that multiplies its state by itself."""
LEAK = 1e-3
"""A damped scale settles at a/(1 − c), so that a leak this small settles beyond a thousand updates: no run sees it."""


@dataclass(frozen=True, kw_only=True)
class LoopCarry:
    """What a loop does to one variable of the state, in the limit of large values."""

    kind: CarryKind
    factor: float
    """c = lim rms(F(αH)) / (α rms(H)), median over tokens: 2 for a loop that adds its state again, 1 for a pre-norm
    residual, A for a decay A, 0 behind a norm."""


def scale_carry(trace: Trace, loop: int) -> LoopCarry:
    """Carry of the scale by loop `loop` (1..K), at the state it starts from. Two calls of the step.

    Raises:
        InputError: the state is zero at every token, or the step overflows even when it is only doubled.
    """
    return _limit(lambda H: trace.model.step(H, trace.context, loop), trace, loop, trace.states[loop - 1].detach())


def mean_carry(trace: Trace, loop: int) -> LoopCarry:
    """Carry of the mean channel by loop `loop`: how much of a shift c·1 of the state the mean of the next one shows.

    Two calls of the step. Raises as `scale_carry`.
    """
    state = trace.states[loop - 1].detach()

    def mean_after(shift: Tensor) -> Tensor:
        following = polar.at_least_float32(trace.model.step(state + shift, trace.context, loop))
        return following.mean(-1, keepdim=True).expand_as(following)

    return _limit(mean_after, trace, loop, polar.scale(state)[..., None].to(state.dtype).expand_as(state))


def over_loops(loops: Sequence[LoopCarry], dtype: torch.dtype) -> LoopCarry:
    """The carry of all loops in a row as one factor a loop, their geometric mean; one that removes is enough."""
    if any(loop.kind == "removed" for loop in loops):
        return LoopCarry(kind="removed", factor=0.0)
    factor = math.exp(math.fsum(math.log(loop.factor) for loop in loops) / len(loops))
    return LoopCarry(kind=carry_kind(factor, _tolerance(dtype)), factor=factor)


def _limit(respond: Callable[[Tensor], Tensor], trace: Trace, loop: int, along: Tensor) -> LoopCarry:
    tolerance = _tolerance(along.dtype)
    start = along * _update_in_states(trace, loop)
    try:
        measured = carry(respond, start, ALPHAS, tolerance)
    except InputError:
        measured = carry(respond, start, SMALL_ALPHAS, tolerance)
    return LoopCarry(kind=measured.kind, factor=measured.factor)


def _update_in_states(trace: Trace, loop: int) -> float:
    """A power of two by which H_{loop-1} is to be multiplied to be no smaller than what the loop makes of it."""
    before, after = (polar.scale(trace.states[k].detach()) for k in (loop - 1, loop))
    ratio = float((after / before)[before > 0].quantile(0.5)) if bool((before > 0).any()) else 1.0
    return 2.0 ** max(0, math.ceil(math.log2(ratio))) if ratio > 0 else 1.0


def _tolerance(dtype: torch.dtype) -> float:
    return max(LEAK, torch.finfo(dtype).eps)
