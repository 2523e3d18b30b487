"""Where the growth of a state comes from: loop by loop, and inside a loop sublayer by sublayer (Lemma 2, rms units).

Growth adds up: s_K − s_0 = Σ_k (a_k + ρ_k), where a_k is the radial part of update k and ρ_k >= 0 the growth that its
turning part causes (`loopverify.theory.ledger`). The same identity, applied to the residual outputs inside a loop one
after another, attributes the growth of the loop to its sublayers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.theory import polar
from loopverify.theory.ledger import ledger_of_branches, ledger_of_states

__all__ = ["Update", "attribute", "updates"]


@dataclass(frozen=True, kw_only=True)
class Update:
    """How loop k moved the state: H_k = H_{k-1} + b with b = a·u_{k-1} + b_perp. Means over tokens, rms units."""

    a_rad: float
    """⟨u_{k-1}, b⟩/d, the radial part of the update: the growth of the scale to first order."""
    b_perp: float
    """rms of the turning part of the update."""
    b_rms: float
    """rms of the whole update."""
    angular_step: float
    """rms(u_k − u_{k-1}), u = H/rms(H): the chord, 2·sin(angle/2); at large scales about b_perp/s."""
    growth: float
    """s_k − s_{k-1} = a + ρ."""
    remainder: float
    """ρ >= 0, the growth that the turning part causes."""
    remainder_bound: float
    """Upper bound of ρ: rms(b_perp)²/(2(s + a)) in the regime of Lemma 2."""


def updates(trace: Trace | Sequence[Tensor]) -> tuple[Update, ...]:
    """The ledger of a trace, or of states H_0..H_K, one entry per loop; no loop is run again."""
    states = trace.states if isinstance(trace, Trace) else trace
    with torch.no_grad():
        ledger = ledger_of_states(states)
        directions = [polar.direction(state) for state in states]
        rows = torch.stack(
            [
                ledger.radial,
                ledger.turning,
                torch.hypot(ledger.radial, ledger.turning),
                torch.stack([polar.scale(v - u) for u, v in itertools.pairwise(directions)]),
                ledger.scales[1:] - ledger.scales[:-1],
                ledger.remainder,
                ledger.remainder_bound,
            ]
        )
        columns = rows.flatten(2).mean(-1).T.tolist()  # one transfer from the device
    names = ("a_rad", "b_perp", "b_rms", "angular_step", "growth", "remainder", "remainder_bound")
    return tuple(Update(**dict(zip(names, column, strict=True))) for column in columns)


def attribute(trace: Trace, loop: int) -> Mapping[str, float]:
    """Growth of the scale during loop `loop` by sublayer, mean over tokens, rms units; the values sum to its growth.

    The branches of the loop are computed once more.

    Raises:
        InputError: the model declares no branches, or their sum differs from what the step adds to the state.
    """
    if trace.model.branches is None:
        raise InputError(
            f"{trace.model.name} declares no branches; expected Looped(branches=...), without which growth "
            "cannot be attributed to sublayers"
        )
    with torch.no_grad():
        before, after = trace.states[loop - 1], trace.states[loop]
        branches = trace.model.branches(before, trace.context, loop)
        ledger = ledger_of_branches(before, branches)
        _check_sum(before, [output for _, output in branches], after, loop)
        return {name: float(share.mean()) for name, share in ledger.attribution().items()}


def _check_sum(before: Tensor, outputs: list[Tensor], after: Tensor, loop: int) -> None:
    """Raise unless H_k = H_{k-1} + Σ outputs, to the rounding of that many additions.

    Rounding is relative to the largest partial sum: the outputs of a loop may cancel.
    """
    start, *wide, end = (polar.at_least_float32(x) for x in (before, *outputs, after))
    total, largest = start, float(start.norm())
    for output in wide:
        total = total + output
        largest = max(largest, float(total.norm()))
    error = float((total - end).norm()) / largest if largest > 0 else 0.0
    allowed = (len(outputs) + 1) * torch.finfo(after.dtype).eps
    if not error <= allowed:
        raise InputError(
            f"the branches of loop {loop} miss the state by {error:.2g} of its size; expected H_{loop} = "
            f"H_{loop - 1} + their sum, to {allowed:.2g}. Capture what is added to the stream, after any norm or gate "
            "of the branch"
        )
