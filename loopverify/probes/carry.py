"""What the recurrence does to a state variable: amplify, carry, damp or remove it, measured on the step as a whole.

Of one loop by itself (`scale_carry`, `mean_carry`), and of loops in a row (`lasting_scale`, `lasting_mean`). The second
is no product of the first: a loop that normalizes some channels and hands the others on loses scale at every state that
it is given, and yet no more than once in a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, cycle, islice

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.theory import polar
from loopverify.theory.activity import CarryKind, carry, carry_kind

__all__ = ["LastingCarry", "LoopCarry", "lasting_mean", "lasting_scale", "mean_carry", "over_loops", "scale_carry"]

ALPHAS = (2.0**10, 2.0**20)
"""Powers of two, by which a float is scaled without rounding. In units in which the state is as large as the update."""
SMALL_ALPHAS = (2.0, 4.0)
"""For a step that overflows at `ALPHAS`: float16, or a block that multiplies its state by itself."""
LEAK = 1e-3
"""A damped scale settles at a/(1 − c), so that a leak this small settles beyond a thousand updates: no run sees it."""
MOST_LOOPS = 128
"""In a row, until what they carry counts as not settled."""
SETTLED = 0.05
"""It has, when the next as many loops have the same factor within this share of what tells carried from damped."""

_Reading = Callable[[Tensor], Tensor]
"""A variable of every token: state (B, T, D) -> (B, T), none below 0."""


@dataclass(frozen=True, kw_only=True)
class LoopCarry:
    """What a loop does to one variable of the state, in the limit of large values."""

    kind: CarryKind
    factor: float
    """c = lim rms(F(αH)) / (α rms(H)), median over tokens: 2 for a loop that adds its state again, 1 for a pre-norm
    residual, A for a decay A, 0 behind a norm."""


@dataclass(frozen=True, kw_only=True)
class LastingCarry(LoopCarry):
    """What loops in a row do to one variable, as one factor a loop: lim (c_2n / c_n)^(1/n), with c_n that of n loops.

    A loss that the first loops cause once and for all does not count.
    """

    doubt: str | None = None
    """Why this may not be the last word; None when it is."""


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


def lasting_scale(trace: Trace, known: int) -> LastingCarry:
    """Carry of the scale by the loops of a model in a row, from the last state of `trace` grown large.

    Takes 2K calls of the step, and more (`MOST_LOOPS` at most, or 2K) while the factor still changes.

    Args:
        known: the loops 1..`known` (>= K) that the model can run. Beyond them, the later half of them comes again.

    Raises:
        InputError: the last state is zero at every token, or the step overflows even when it is only doubled.
    """
    last = trace.states[-1].detach()
    size = _typical(polar.scale(last))
    if size == 0:
        raise InputError(f"every token of H_{trace.loops} is zero; expected a state with a scale to carry")
    grown = last * (ALPHAS[-1] * _power_of_two(_largest(trace) / size))
    return _lasting(trace, known, grown, polar.scale, scale_carry)


def lasting_mean(trace: Trace, known: int) -> LastingCarry:
    """Carry of the mean channel by the loops of a model in a row: what becomes of a large shift c·1 of the last state.

    Arguments, calls and errors as those of `lasting_scale`.
    """
    last = trace.states[-1].detach()
    shifted = last + ALPHAS[-1] * _power_of_two(_largest(trace) or 1.0)
    return _lasting(trace, known, shifted, lambda H: polar.at_least_float32(H).mean(-1).abs(), mean_carry)


def over_loops(loops: Sequence[LoopCarry], dtype: torch.dtype) -> LoopCarry:
    """The carries of single loops as one factor a loop, their geometric mean; one that removes is enough."""
    if any(loop.kind == "removed" for loop in loops):
        return LoopCarry(kind="removed", factor=0.0)
    factor = math.exp(math.fsum(math.log(loop.factor) for loop in loops) / len(loops))
    return LoopCarry(kind=carry_kind(factor, _tolerance(dtype)), factor=factor)


def _lasting(
    trace: Trace, known: int, start: Tensor, read: _Reading, single: Callable[[Trace, int], LoopCarry]
) -> LastingCarry:
    tolerance = _tolerance(start.dtype)
    loops = chain(range(1, known + 1), cycle(range(known // 2 + 1, known + 1)))
    try:
        with torch.no_grad():
            return _settled(_in_a_row(trace, start, read, loops, tolerance), trace.loops, tolerance)
    except InputError as error:
        apart = []
        for loop in range(1, trace.loops + 1):
            with suppress(InputError):
                apart.append(single(trace, loop))
        if not apart:
            raise
        product = over_loops(apart, start.dtype)
        doubt = f"it is the product of single loops, since loops in a row cannot be measured: {error}"
        return LastingCarry(kind=product.kind, factor=product.factor, doubt=doubt)


def _in_a_row(trace: Trace, start: Tensor, read: _Reading, loops: Iterable[int], tolerance: float) -> Iterator[Tensor]:
    """What each loop leaves of a variable, (B, T) factors, when given what the loops before it left of a large state.

    Between loops the state is brought back to its size, so that it stays in the limit of large values and in the range
    of its dtype however many loops there are. What a loop removes begins anew.
    """
    state, size = start, _typical(read(start))
    for loop in loops:
        following = trace.model.step(state, trace.context, loop)
        before, after = read(state), read(following)
        if not bool(after.isfinite().all()):
            raise InputError(f"loop {loop} of a state grown to {size:.2g} gave values that are not finite")
        factor = after / before
        yield torch.where(factor <= tolerance, torch.zeros_like(factor), factor)
        removed = not float(factor.nanmedian()) > tolerance
        state = start if removed else following / _power_of_two(_typical(after) / size)


def _settled(factors: Iterator[Tensor], loops: int, tolerance: float) -> LastingCarry:
    """The factor over `loops` loops, over as many again, then twice as many, until two of these agree."""
    run, earlier = loops, _a_loop(islice(factors, loops))
    while True:
        later = _a_loop(islice(factors, run))
        run *= 2
        if (settled := abs(later - earlier) <= SETTLED * tolerance) or run >= MOST_LOOPS:
            break
        earlier = later
    doubt = f"the factor still changes after {run} loops in a row, from {earlier:.4g} to {later:.4g} a loop"
    return LastingCarry(kind=carry_kind(later, tolerance), factor=later, doubt=None if settled else doubt)


def _a_loop(factors: Iterable[Tensor]) -> float:
    """Geometric mean over loops, then the median over tokens; 0 where a loop removed it."""
    return float(torch.stack(list(factors)).log().mean(0).exp().nanmedian())


def _typical(sizes: Tensor) -> float:
    """The median over tokens that are not zero; 0 where all of them are."""
    return float(sizes[sizes > 0].median()) if bool((sizes > 0).any()) else 0.0


def _largest(trace: Trace) -> float:
    """The largest typical scale of a run, than which no update of it was much larger."""
    return max(_typical(polar.scale(state.detach())) for state in trace.states)


def _power_of_two(size: float) -> float:
    """The largest one that is no larger than `size` > 0."""
    return 2.0 ** math.floor(math.log2(size))


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
