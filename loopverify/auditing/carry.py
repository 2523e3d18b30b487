"""What the recurrence does to a state variable: amplify, carry, damp or remove it, measured on the step as a whole.

Of one loop by itself (`scale_carry`, `mean_carry`), and of loops in a row (`lasting_scale`, `lasting_mean`). The second
is no product of the first: a loop that normalizes some channels and hands the others on loses scale at every state that
it is given, and yet no more than once in a row. A loop that damps some channels and hands the others on never stops
losing scale, and yet what lasts of it is carried: the factor in the long run is that of the direction it keeps most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, cycle, islice

import torch
from torch import Tensor

from loopverify.auditing.krylov import kept_most
from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.theory import polar
from loopverify.theory.recurrence import CarryKind, carry, carry_kind

__all__ = [
    "MOST_LOOPS",
    "LastingCarry",
    "LoopCarry",
    "lasting_mean",
    "lasting_scale",
    "mean_carry",
    "over_loops",
    "scale_carry",
]

ALPHAS = (2.0**10, 2.0**20)
"""Powers of two, by which a float is scaled without rounding. In units in which the state is as large as the update."""
SMALL_ALPHAS = (2.0, 4.0)
"""For a step that overflows at `ALPHAS`: float16, or a block that multiplies its state by itself."""
LEAK = 1e-3
"""A damped scale settles at a/(1 − c), so that a leak this small settles beyond a thousand updates: no run sees it."""
MOST_LOOPS = 256
"""Until what loops in a row carry counts as not settled; the second half of them for the direction they keep most."""
LEAST_WINDOW, SPAN = 4, 2
"""Loops over which a factor is measured, and states of as many loops that a direction is chosen from."""
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


def lasting_scale(trace: Trace, known: int, most: int = MOST_LOOPS) -> LastingCarry:
    """Carry of the scale by the loops of a model in a row, from the last state of `trace` grown large.

    Takes 2K calls of the step (8 at least), 2K more where the scale is damped, and more while the factor still changes.

    Args:
        known: the loops 1..`known` (>= K) that the model can run. Beyond them, the later half of them comes again.
        most: calls of the step that are made at most, unless fewer than the least.

    Raises:
        InputError: the last state is zero at every token, or the step overflows even when it is only doubled.
    """
    last = trace.states[-1].detach()
    size = _typical(polar.scale(last))
    if size == 0:
        raise InputError(f"every token of H_{trace.loops} is zero; expected a state with a scale to carry")
    grown = last * (ALPHAS[-1] * _power_of_two(_largest(trace) / size))
    return _lasting(trace, known, most, grown, polar.scale, scale_carry)


def lasting_mean(trace: Trace, known: int, most: int = MOST_LOOPS) -> LastingCarry:
    """Carry of the mean channel by the loops of a model in a row: what becomes of a large shift c·1 of the last state.

    Arguments, calls and errors as those of `lasting_scale`.
    """
    last = trace.states[-1].detach()
    shifted = last + ALPHAS[-1] * _power_of_two(_largest(trace) or 1.0)
    return _lasting(trace, known, most, shifted, lambda H: polar.at_least_float32(H).mean(-1).abs(), mean_carry)


def over_loops(loops: Sequence[LoopCarry], dtype: torch.dtype) -> LoopCarry:
    """The carries of single loops as one factor a loop, their geometric mean; one that removes is enough."""
    if any(loop.kind == "removed" for loop in loops):
        return LoopCarry(kind="removed", factor=0.0)
    factor = math.exp(math.fsum(math.log(loop.factor) for loop in loops) / len(loops))
    return LoopCarry(kind=carry_kind(factor, _tolerance(dtype)), factor=factor)


def _lasting(
    trace: Trace,
    known: int,
    most: int,
    start: Tensor,
    read: _Reading,
    single: Callable[[Trace, int], LoopCarry],
) -> LastingCarry:
    loops = chain(range(1, known + 1), cycle(range(known // 2 + 1, known + 1)))
    try:
        with torch.no_grad():
            window = trace.loops * math.ceil(LEAST_WINDOW / trace.loops)
            return _lasts(_Row(trace, start, read, loops), window, most)
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


class _Row:
    """Loops in a row, each given what the loops before it left of a large state.

    Between loops the state is brought back to its size, so that it stays in the limit of large values and in the range
    of its dtype however many loops there are. What a loop removes begins anew.
    """

    def __init__(self, trace: Trace, start: Tensor, read: _Reading, loops: Iterator[int]) -> None:
        self._trace, self._start, self._read, self._loops = trace, start, read, loops
        self._size = _typical(read(start))
        self._state = start
        self._seen = [start]
        self.tolerance = _tolerance(start.dtype)

    def run(self, loops: int) -> float:
        """What as many loops leave of the variable, as one factor a loop, the median over tokens; 0 for removed."""
        every, unit, factors = max(1, loops // SPAN), 1.0, []
        self._seen = [self._state]
        for place, loop in enumerate(islice(self._loops, loops), start=1):
            factor, change = self._step(loop)
            factors.append(factor)
            unit *= change
            if place % every == 0:
                self._seen.append(unit * self._state)
        return float(torch.stack(factors).log().mean(0).exp().nanmedian())

    def _step(self, loop: int) -> tuple[Tensor, float]:
        """What is left of every token, and the power of two that was taken out of the state."""
        following = self._trace.model.step(self._state, self._trace.context, loop)
        before, after = self._read(self._state), self._read(following)
        if not bool(after.isfinite().all()):
            raise InputError(f"loop {loop} of a state grown to {self._size:.2g} gave values that are not finite")
        factor, change = after / before, 1.0
        if float(factor.nanmedian()) > self.tolerance:
            change = _power_of_two(_typical(after) / self._size)
            self._state = following / change
        else:
            self._state = self._start
        return torch.where(factor <= self.tolerance, torch.zeros_like(factor), factor), change

    def from_what_is_kept_most(self) -> _Row | None:
        """The row that goes on from the direction that loops keep most, of those that the states of the last run span;
        None where a state is beyond the range of its dtype, or the variable is 0 in that direction."""
        if not all(bool(state.isfinite().all()) for state in self._seen):
            return None
        direction = kept_most(self._seen)
        size = _typical(self._read(direction))
        if size == 0:
            return None
        return _Row(self._trace, (direction * (self._size / size)).to(self._start), self._read, self._loops)


@dataclass(frozen=True, kw_only=True)
class _Windows:
    """The factors of the last two runs of a row."""

    earlier: float
    later: float
    window: int
    """Loops of the later one."""
    loops: int
    """Of all runs."""
    settled: bool

    @classmethod
    def of(cls, row: _Row, window: int, most: int) -> _Windows:
        """Of `window` loops and as many again, then twice as many, until two of these agree."""
        near = SETTLED * row.tolerance
        earlier, later, loops = row.run(window), row.run(window), 2 * window
        while abs(later - earlier) > near and 2 * loops <= most:
            earlier, later, window, loops = later, row.run(loops), loops, 2 * loops
        return cls(earlier=earlier, later=later, window=window, loops=loops, settled=abs(later - earlier) <= near)


def _lasts(row: _Row, window: int, most: int) -> LastingCarry:
    """The factor on which windows of loops agree; unless nothing is lost or all, that of the direction kept most.

    What fades slowly beside what stays changes the factor too little, or for too long, to be told from what settled.
    """
    found = _Windows.of(row, window, most // 2)
    loops = found.loops
    again = min(found.window, (most - loops) // 2)
    damped = carry_kind(found.later, row.tolerance) == "damped"
    if again >= 1 and (damped or not found.settled) and (kept := row.from_what_is_kept_most()):
        of_kept = _Windows.of(kept, again, most - loops)
        loops += of_kept.loops
        if of_kept.later >= found.later - SETTLED * row.tolerance:
            found = of_kept
    doubt = (
        f"the factor still changes after {loops} loops in a row, from {found.earlier:.4g} to {found.later:.4g} a loop"
    )
    kind = carry_kind(found.later, row.tolerance)
    return LastingCarry(kind=kind, factor=found.later, doubt=None if found.settled else doubt)


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
