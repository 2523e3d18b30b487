"""The carry of consecutive loops, as one factor per loop: lim (c_2n / c_n)^(1/n), where c_n is what n loops keep.

The loops run on a state so large that their bounded updates no longer matter: what remains is how the step maps a large
state to the next one. Running them and dividing the last size by the first would go wrong in three ways.

1. Transients. A loop that normalizes half of the channels loses scale once, at the first loop, and never again. So a
   window of n loops is compared with the next n, and n doubles until both have the same factor; only the later window
   counts.
2. Range. 0.5 per loop underflows float32 after 150 loops. So the state is brought back to its size after each loop, by
   a power of two, which rounds nothing.
3. Slow decay. Where half of the channels are kept by 0.99 and half by 1, the factor creeps towards 1 over hundreds of
   loops, and two windows agree long before it arrives. So whenever the factor came out as damped, or did not settle,
   the loops start again from the direction that they keep most. It need not be awaited: the states of the last window
   span a space that contains it, or a good approximation (`dominant_direction`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.theory.polar import at_least_float32
from loopverify.theory.recurrence import carry_kind

__all__ = [
    "LEAST_WINDOW",
    "ConsecutiveLoops",
    "LastingFactor",
    "Variable",
    "dominant_direction",
    "lasting_factor",
    "power_of_two",
    "typical",
]

LEAST_WINDOW = 4
"""The fewest loops of a window."""
SPAN = 2
"""Parts into which a window is cut: the dominant direction is sought in the span of the states that they start from."""
SETTLED = 0.05
"""A factor has settled when those of two windows differ by at most this share of the tolerance that separates carried
from damped."""
SMALL = 1e-4
"""Singular values of the states below this share of the largest are noise: rounding, and the updates of a large
state."""

Variable = Callable[[Tensor], Tensor]
"""Reads a non-negative number from every token: state (B, T, D) -> (B, T)."""


class ConsecutiveLoops:
    """Loops that each start from what the loops before them left of a large state.

    Args:
        trace: a run of the model, whose step and context are used.
        start: the large state, (B, T, D).
        read: the variable whose factor is measured.
        loops: the loops to run, in this order; never exhausted.
        tolerance: a variable of which a loop keeps at most this share is removed.
    """

    def __init__(self, trace: Trace, start: Tensor, read: Variable, loops: Iterator[int], tolerance: float) -> None:
        self._trace, self._start, self._read, self._loops = trace, start, read, loops
        self._size = typical(read(start))
        self._state = start
        self._snapshots = [start]
        self.tolerance = tolerance

    def run(self, loops: int) -> float:
        """Run a window of `loops` loops: the factor per loop by which the median token keeps the variable; 0: removed.

        Snapshots of the state are kept for the dominant direction. They are multiplied by the powers of two taken out
        since the beginning of the window, so that each snapshot is the image of the one before it.
        """
        interval, taken_out, factors = max(1, loops // SPAN), 1.0, []
        self._snapshots = [self._state]
        for place, loop in enumerate(islice(self._loops, loops), start=1):
            factor, power = self._step(loop)
            factors.append(factor)
            taken_out *= power
            if place % interval == 0:
                self._snapshots.append(taken_out * self._state)
        return float(torch.stack(factors).log().mean(0).exp().nanmedian())

    def _step(self, loop: int) -> tuple[Tensor, float]:
        """The factor of each token, (B, T), and the power of two taken out of the state afterwards.

        A loop that removes the variable leaves nothing large to go on with: the next loop then gets the first state.
        """
        following = self._trace.model.step(self._state, self._trace.context, loop)
        before, after = self._read(self._state), self._read(following)
        if not bool(after.isfinite().all()):
            raise InputError(f"loop {loop} of a state grown to {self._size:.2g} gave values that are not finite")
        factor, power = after / before, 1.0
        if float(factor.nanmedian()) > self.tolerance:
            power = power_of_two(typical(after) / self._size)
            self._state = following / power
        else:
            self._state = self._start
        return torch.where(factor <= self.tolerance, torch.zeros_like(factor), factor), power

    def from_dominant_direction(self) -> ConsecutiveLoops | None:
        """The same loops, continued from the direction that they keep most in the span of the last window's states.

        None where a snapshot is beyond the range of its dtype, or where the variable is 0 in that direction.
        """
        if not all(bool(state.isfinite().all()) for state in self._snapshots):
            return None
        direction = dominant_direction(self._snapshots)
        size = typical(self._read(direction))
        if size == 0:
            return None
        start = (direction * (self._size / size)).to(self._start)
        return ConsecutiveLoops(self._trace, start, self._read, self._loops, self.tolerance)


@dataclass(frozen=True, kw_only=True)
class LastingFactor:
    """The factor per loop on which the last two windows agree, or their two factors where they do not."""

    earlier: float
    factor: float
    """The factor of the later window, which is the result."""
    window: int
    """Loops of the later window."""
    loops: int
    """Loops run in all."""
    settled: bool


def lasting_factor(run: ConsecutiveLoops, window: int, most: int) -> LastingFactor:
    """The factor per loop in the long run, from windows of `window` loops and more, at most `most` loops in all.

    The first half of the budget is for the state as given. If the factor is then damped or unsettled, the second half
    measures the dominant direction, whose factor counts unless it is smaller: a direction that is kept less than the
    state itself was not the dominant one (the map changes from loop to loop, or is not linear).
    """
    found = _doubling_windows(run, window, most // 2)
    loops = found.loops
    remaining = min(found.window, (most - loops) // 2)
    damped = carry_kind(found.factor, run.tolerance) == "damped"
    if remaining >= 1 and (damped or not found.settled) and (dominant := run.from_dominant_direction()):
        again = _doubling_windows(dominant, remaining, most - loops)
        loops += again.loops
        if again.factor >= found.factor - SETTLED * run.tolerance:
            found = again
    return LastingFactor(
        earlier=found.earlier, factor=found.factor, window=found.window, loops=loops, settled=found.settled
    )


def _doubling_windows(run: ConsecutiveLoops, window: int, most: int) -> LastingFactor:
    """Run `window` loops and as many again, then windows as long as all loops so far, until two in succession agree."""
    near = SETTLED * run.tolerance
    earlier, later, loops = run.run(window), run.run(window), 2 * window
    while abs(later - earlier) > near and 2 * loops <= most:
        earlier, later, window, loops = later, run.run(loops), loops, 2 * loops
    settled = abs(later - earlier) <= near
    return LastingFactor(earlier=earlier, factor=later, window=window, loops=loops, settled=settled)


def dominant_direction(states: Sequence[Tensor]) -> Tensor:
    """The direction that a linear map keeps most, among those spanned by states that it produced one from another.

    Applying the map again and again would find it, too, but as slowly as the other directions fade: at 0.99 per loop
    they halve every seventy loops. The span of n + 1 successive states contains the dominant direction exactly if no
    more than n other factors are involved, however slowly they fade (a Krylov space). Within the span it is the first
    right singular vector of the map in an orthonormal basis of the span; a plain ratio of successive norms would only
    describe the mixture that the states happen to be.

    Args:
        states: two or more tensors of one shape, each the image of the one before under the same linear map.

    Returns:
        Σ c_j s_j over all states but the last, of their shape and of norm 1, with the c that maximize
        ||Σ c_j s_{j+1}|| / ||Σ c_j s_j||.
    """
    columns = torch.stack([at_least_float32(state).flatten() for state in states], dim=-1)
    inputs, outputs = columns[:, :-1], columns[:, 1:]
    basis, sizes, mixtures = torch.linalg.svd(inputs, full_matrices=False)
    # Successive states are nearly parallel. What separates them by less than rounding must not become a direction.
    rank = int((sizes > sizes[0] * max(SMALL, math.sqrt(torch.finfo(states[0].dtype).eps))).sum())
    image = outputs @ (mixtures[:rank].mT / sizes[:rank])  # of each basis vector: the map is linear
    kept: Tensor = torch.linalg.svd(image, full_matrices=False).Vh[0]
    direction: Tensor = basis[:, :rank] @ kept
    return direction.view_as(states[0])


def typical(sizes: Tensor) -> float:
    """The median over the tokens that are not zero; 0 where all of them are."""
    return float(sizes[sizes > 0].median()) if bool((sizes > 0).any()) else 0.0


def power_of_two(size: float) -> float:
    """The largest power of two that is at most `size` > 0."""
    return 2.0 ** math.floor(math.log2(size))
