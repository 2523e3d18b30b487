"""What the recurrence does to a state variable: amplify, carry, damp or remove it, measured on the step as a whole.

Two measurements, of which the second is not the product of the first:

- `scale_carry` and `mean_carry` take one loop alone, at the state it starts from: c = lim rms(F(αH)) / (α rms(H)).
- `lasting_scale` and `lasting_mean` take consecutive loops, each on what the loops before it left of a large state.

Take a loop that normalizes half of the channels and carries the others. Every single loop, started from a state with
scale in both halves, loses some of it, so that the product of many tends to 0. Yet run one after another they lose it
only once: from the second loop on, all of the scale lies in the carried half and stays. Or take a loop that damps half
of the channels and carries the others: it never stops losing scale, and yet what is left in the end is carried. The
factor in the long run is that of the direction that the loops keep most; `consecutive` says how it is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, cycle

import torch
from torch import Tensor

from loopverify.auditing.consecutive import (
    LEAST_WINDOW,
    ConsecutiveLoops,
    Variable,
    lasting_factor,
    power_of_two,
    typical,
)
from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.theory import polar
from loopverify.theory.recurrence import CarryKind, carry, carry_kind

__all__ = [
    "MOST_LOOPS",
    "LastingCarry",
    "LoopCarry",
    "geometric_mean",
    "lasting_mean",
    "lasting_scale",
    "mean_carry",
    "scale_carry",
]

ALPHAS = (2.0**10, 2.0**20)
"""Large α, in units in which the state is as large as the update. Powers of two scale a float without rounding."""
SMALL_ALPHAS = (2.0, 4.0)
"""Used where the step overflows at `ALPHAS`: float16, or a block that multiplies its state by itself."""
LEAK = 1e-3
"""How far from 1 a factor counts as carried, and from 0 as removed. A damped scale settles at a/(1 − c): with a leak
this small, beyond a thousand updates, which no run reaches."""
MOST_LOOPS = 256
"""Consecutive loops after which a carry is reported as unsettled, unless a caller allows more or fewer."""


@dataclass(frozen=True, kw_only=True)
class LoopCarry:
    """What a loop does to one variable of the state, in the limit of large values."""

    kind: CarryKind
    factor: float
    """c = lim rms(F(αH)) / (α rms(H)), median over tokens: 2 for a loop that adds its state again, 1 for a pre-norm
    residual, A for a decay A, 0 behind a norm."""


@dataclass(frozen=True, kw_only=True)
class LastingCarry(LoopCarry):
    """What consecutive loops do to one variable, as one factor per loop: lim (c_2n / c_n)^(1/n), c_n that of n loops.

    A loss that happens once, in the first loops, does not count.
    """

    doubt: str | None = None
    """Why the factor may be wrong; None if there is no reason to think so."""


def scale_carry(trace: Trace, loop: int) -> LoopCarry:
    """Carry of the scale by loop `loop` (1..K), at the state it starts from. Calls the step twice.

    Raises:
        InputError: the state is zero at every token, or the step overflows even when the state is only doubled.
    """
    return _limit(lambda H: trace.model.step(H, trace.context, loop), trace, loop, trace.states[loop - 1].detach())


def mean_carry(trace: Trace, loop: int) -> LoopCarry:
    """Carry of the mean channel by loop `loop`: the share of a shift c·1 of the state found in the mean of the next.

    Calls the step twice. Raises as `scale_carry`.
    """
    state = trace.states[loop - 1].detach()

    def mean_after(shift: Tensor) -> Tensor:
        following = polar.at_least_float32(trace.model.step(state + shift, trace.context, loop))
        return following.mean(-1, keepdim=True).expand_as(following)

    return _limit(mean_after, trace, loop, polar.scale(state)[..., None].to(state.dtype).expand_as(state))


def lasting_scale(trace: Trace, available: int, most: int = MOST_LOOPS) -> LastingCarry:
    """Carry of the scale by consecutive loops of a model, starting from the last state of `trace`, grown large.

    Calls the step 2K times (at least 8), 2K times more where the scale is damped, and again while the factor changes.

    Args:
        available: the model can run loops 1..`available` (>= K). Beyond them, the later half of them is repeated.
        most: calls of the step at most; the minimum above is made in any case.

    Raises:
        InputError: the last state is zero at every token, or the step overflows even when the state is only doubled.
    """
    last = trace.states[-1].detach()
    size = typical(polar.scale(last))
    if size == 0:
        raise InputError(f"every token of H_{trace.loops} is zero; expected a state with a scale to carry")
    grown = last * (ALPHAS[-1] * power_of_two(_largest_scale(trace) / size))
    return _lasting(trace, available, most, grown, polar.scale, scale_carry)


def lasting_mean(trace: Trace, available: int, most: int = MOST_LOOPS) -> LastingCarry:
    """Carry of the mean channel by consecutive loops: what they leave of a large shift c·1 of the last state.

    Arguments, calls and errors are those of `lasting_scale`.
    """
    last = trace.states[-1].detach()
    shifted = last + ALPHAS[-1] * power_of_two(_largest_scale(trace) or 1.0)
    return _lasting(trace, available, most, shifted, lambda H: polar.at_least_float32(H).mean(-1).abs(), mean_carry)


def geometric_mean(loops: Sequence[LoopCarry], dtype: torch.dtype) -> LoopCarry:
    """The carries of single loops as one factor per loop; a single loop that removes the variable removes it for all.

    It stands in for the carry of consecutive loops where these cannot be measured.
    """
    if any(loop.kind == "removed" for loop in loops):
        return LoopCarry(kind="removed", factor=0.0)
    factor = math.exp(math.fsum(math.log(loop.factor) for loop in loops) / len(loops))
    return LoopCarry(kind=carry_kind(factor, _tolerance(dtype)), factor=factor)


def _lasting(
    trace: Trace,
    available: int,
    most: int,
    start: Tensor,
    read: Variable,
    single: Callable[[Trace, int], LoopCarry],
) -> LastingCarry:
    """The factor of consecutive loops from `start`; where these overflow, the mean of `single` loops, with a doubt."""
    loops = chain(range(1, available + 1), cycle(range(available // 2 + 1, available + 1)))
    tolerance = _tolerance(start.dtype)
    # Windows of whole runs: a model whose loops differ (doubling, then halving) has one factor per run of K loops.
    window = trace.loops * math.ceil(LEAST_WINDOW / trace.loops)
    try:
        with torch.no_grad():
            found = lasting_factor(ConsecutiveLoops(trace, start, read, loops, tolerance), window, most)
    except InputError as error:
        alone = []
        for loop in range(1, trace.loops + 1):
            with suppress(InputError):
                alone.append(single(trace, loop))
        if not alone:
            raise
        mean = geometric_mean(alone, start.dtype)
        doubt = f"it is the geometric mean of single loops, because consecutive loops cannot be measured: {error}"
        return LastingCarry(kind=mean.kind, factor=mean.factor, doubt=doubt)
    doubt = (
        f"the factor still changes after {found.loops} consecutive loops, from {found.earlier:.4g} to "
        f"{found.factor:.4g} per loop"
    )
    kind = carry_kind(found.factor, tolerance)
    return LastingCarry(kind=kind, factor=found.factor, doubt=None if found.settled else doubt)


def _limit(respond: Callable[[Tensor], Tensor], trace: Trace, loop: int, along: Tensor) -> LoopCarry:
    """The carry of one loop, from α so large that its update no longer matters, or from small α where these overflow.

    The size of the update sets the unit of α: a branch that is far larger than the state, as at initialization from
    small embeddings, would otherwise drown the residual stream in rounding even at large α.
    """
    tolerance = _tolerance(along.dtype)
    start = along * _update_in_states(trace, loop)
    try:
        measured = carry(respond, start, ALPHAS, tolerance)
    except InputError:
        measured = carry(respond, start, SMALL_ALPHAS, tolerance)
    return LoopCarry(kind=measured.kind, factor=measured.factor)


def _update_in_states(trace: Trace, loop: int) -> float:
    """The power of two by which H_{loop-1} has to be multiplied to be at least as large as the state after it."""
    before, after = (polar.scale(trace.states[k].detach()) for k in (loop - 1, loop))
    ratio = float((after / before)[before > 0].quantile(0.5)) if bool((before > 0).any()) else 1.0
    return 2.0 ** max(0, math.ceil(math.log2(ratio))) if ratio > 0 else 1.0


def _largest_scale(trace: Trace) -> float:
    """The largest typical scale of a run, which no update of the run exceeds by much."""
    return max(typical(polar.scale(state.detach())) for state in trace.states)


def _tolerance(dtype: torch.dtype) -> float:
    return max(LEAK, torch.finfo(dtype).eps)
