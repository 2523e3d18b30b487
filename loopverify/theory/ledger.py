"""The norm ledger: all growth of a state's scale, attributed to loops or sublayers (Lemma 2, summed).

    s_K − s_0 = Σ_i a_i + Σ_i ρ_i,        0 <= ρ_i <= rms(b_perp,i)² / (2(s_i + a_i))

An entry i is a vector b_i with the state that it is added to: the update of a whole loop, or the output of one residual
branch (attention or MLP of a layer). Its radial part a_i changes the scale directly. Its turning part b_perp,i is
orthogonal to the state and still makes it longer, by Pythagoras: this growth is ρ_i. Leaving it out would underestimate
the growth by branches that turn the state. Everything is in rms units.

Shapes: K entries, D channels, "..." any leading dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.theory.enclosures import scale_enclosure
from loopverify.theory.polar import at_least_float32, check_state, radial_turning, scale, split

__all__ = ["Ledger", "ledger_of_branches", "ledger_of_states"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Ledger:
    """The growth of the scale by entry; the tensors have one row per entry, in order."""

    names: tuple[str, ...]
    """K names; a name may occur several times, as that of a sublayer does in every loop."""
    scales: Tensor
    """s_0 .. s_K, (K + 1, ...), each measured on its own state."""
    radial: Tensor
    """a_i, the first-order growth, (K, ...)."""
    turning: Tensor
    """rms(b_perp,i), (K, ...)."""
    remainder: Tensor
    """ρ_i >= 0, the growth by the turning part, (K, ...); computed from b_perp, not as a difference of scales."""
    remainder_bound: Tensor
    """Upper bound of ρ_i, (K, ...); see `scale_enclosure`."""

    @property
    def growth(self) -> Tensor:
        """s_K − s_0, (...)."""
        return self.scales[-1] - self.scales[0]

    @property
    def accounted(self) -> Tensor:
        """Σ_i a_i + Σ_i ρ_i, (...): equals `growth` up to rounding (per entry, a few ulps of the largest scale)."""
        return (self.radial + self.remainder).sum(0)

    def attribution(self) -> dict[str, Tensor]:
        """Growth a + ρ by name, summed over the entries of that name, each (...); the values sum to `accounted`."""
        shares: dict[str, Tensor] = {}
        for name, share in zip(self.names, self.radial + self.remainder, strict=True):
            shares[name] = shares[name] + share if name in shares else share
        return shares


def ledger_of_states(states: Sequence[Tensor]) -> Ledger:
    """The ledger of H_0 .. H_K, each (..., D), loop by loop; entries are named "loop 1" .. "loop K".

    It holds for any recurrence, but its meaning depends on the recurrence: with a norm at the loop boundary, a_i also
    contains what the norm removes.

    Raises:
        InputError: there are fewer than two states, or their shapes differ.
    """
    if len(states) < 2:
        raise InputError(f"a ledger of {len(states)} states; expected at least two, H_0 and H_1")
    states = _same_shape(states)
    updates = [later - earlier for earlier, later in itertools.pairwise(states)]
    return _ledger([f"loop {k}" for k in range(1, len(states))], states, updates)


def ledger_of_branches(state: Tensor, branches: Sequence[tuple[str, Tensor]]) -> Ledger:
    """The ledger of one state (..., D) to which named residual outputs (..., D) are added, in order.

    For growth by sublayer over several loops, pass the branches of all of them in order and read `attribution`.

    Raises:
        InputError: there are no branches, or a branch does not have the shape of the state.
    """
    if not branches:
        raise InputError("a ledger of no branches; expected at least one (name, output) pair")
    for name, output in branches:
        if output.shape != state.shape:
            raise InputError(
                f"branch {name!r} has shape {tuple(output.shape)}; expected the state's, {tuple(state.shape)}"
            )
    state, *updates = _same_shape([state, *(output for _, output in branches)])
    states = list(itertools.accumulate(updates, initial=state))
    return _ledger([name for name, _ in branches], states, updates)


def _ledger(names: Sequence[str], states: Sequence[Tensor], updates: Sequence[Tensor]) -> Ledger:
    rows = [_entry(state, update) for state, update in zip(states[:-1], updates, strict=True)]
    radial, turning, remainder, bound = (torch.stack(column) for column in zip(*rows, strict=True))
    return Ledger(
        names=tuple(names),
        scales=torch.stack([scale(state) for state in states]),
        radial=radial,
        turning=turning,
        remainder=remainder,
        remainder_bound=bound,
    )


def _same_shape(states: Sequence[Tensor]) -> list[Tensor]:
    """The states in at least float32: differences of half-precision states would lose small updates."""
    shapes = {tuple(check_state(state, "a state").shape) for state in states}
    if len(shapes) > 1:
        raise InputError(f"states of shapes {sorted(shapes)}; expected one shape for all loops")
    return [at_least_float32(state) for state in states]


def _entry(state: Tensor, update: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """a, rms(b_perp), ρ and its bound for one update."""
    polar = split(state)
    a, b_perp = radial_turning(polar.direction, update)
    turning, x = scale(b_perp), polar.scale + a
    size = torch.hypot(x, turning)
    # ρ = size − x cancels if the turning part is small: at s = 1e4 and rms(b_perp) = 1, ρ is 5e-5, less than an ulp of
    # s in float32. So for x > 0: (size² − x²)/(size + x) = turning²/(size + x), which has full relative accuracy.
    stable = turning.square() / (size + x)
    remainder = torch.where(x > 0, stable, size - x)
    bound = scale_enclosure(polar.scale, a, turning)[1] - x
    return a, turning, remainder, bound
