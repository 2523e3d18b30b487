"""What an objective sees of the state: which of its terms would notice if scale, or the mean channel, grew.

A term hides scale if its gradient is that of a function that ignores it: α·∇L(αH) = ∇L(H), without a radial part. This
is asked of the whole objective with the recurrence cut, so that a penalty counts, a detached one does not, and it does
not matter by which way a term reads the state. A normalizer's epsilon drops out, because α is large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.looped import Trace
from loopverify.probes.gradients import ObjectiveLike, direct_gradients
from loopverify.probes.sweep import DRIFT, HALF, Exit, Visibility
from loopverify.theory import polar
from loopverify.theory import visibility as theory

__all__ = ["Signal", "grow", "overall", "seen_by", "signals"]


@dataclass(frozen=True, kw_only=True)
class Signal:
    """What one term of an objective sees of the state that it reads at one loop."""

    term: str
    loop: int
    scale_defect: float
    """||α s ∇L(αH) − s ∇L(H)_turning|| / ||s ∇L(H)_turning|| over all tokens, α in the hundreds: 0 for a term that
    ignores scale, 1 or more for a raw exit, infinite for a penalty."""
    scale: Visibility
    mean_fraction: float
    """Mean over tokens of |<g, 1>| / (||g||_2 ||1||_2): how much of the gradient lies along the mean channel."""
    mean: Visibility


def signals(
    trace: Trace,
    targets: Tensor,
    objective: ObjectiveLike,
    now: Mapping[str, tuple[Tensor, ...]],
    exits: Sequence[Exit],
    dtype: torch.dtype,
) -> tuple[Signal, ...]:
    """What every term sees at every loop whose state it reads; terms that do not read a state are left out.

    Args:
        now: the direct gradients of `objective` on `trace`.
        exits: the exits 1..K of `trace`.
        dtype: of the computation, which sets the rounding floor for the mean.
    """
    factors = [_growth(state, loop) for loop, state in enumerate(trace.states)]
    later = direct_gradients(grow(trace, factors), targets, objective)
    found = []
    for term, gradients in now.items():
        for view, state, factor, g, grown in zip(
            exits, trace.states[1:], factors[1:], gradients, later[term], strict=True
        ):
            if not (g.any() or grown.any()):
                continue
            defect = _defect(state, g, factor * grown)
            mean = _nanmean(theory.mean_fraction(g))
            found.append(
                Signal(
                    term=term,
                    loop=view.loop,
                    scale_defect=defect,
                    scale=_scale_visibility(defect, _radial(g, state), _radial(factor * grown, state), view),
                    mean_fraction=mean,
                    mean="hidden" if mean <= theory.floor(dtype, state.shape[-1]) else "visible",
                )
            )
    return tuple(found)


def overall(parts: Sequence[Visibility]) -> Visibility:
    """What several views show together: the best of them."""
    return min(parts, key=("visible", "saturating", "hidden").index)


def seen_by(terms: Sequence[Signal], variable: str) -> tuple[str, ...]:
    """The terms to which `variable` ('scale' or 'mean') is not hidden, each once."""
    return tuple(dict.fromkeys(signal.term for signal in terms if getattr(signal, variable) != "hidden"))


def grow(trace: Trace, factors: Sequence[Tensor]) -> Trace:
    """`trace` with its states multiplied by factors (B, T, 1), as if they had grown; nothing is run again."""
    states = tuple(state.detach() * factor for state, factor in zip(trace.states, factors, strict=True))
    return Trace(trace.model, trace.tokens, states, trace.context, trace.grad)


def _growth(state: Tensor, loop: int) -> Tensor:
    """Factors (B, T, 1), `DRIFT` or a quarter of it by turns: a term that compares tokens or loops must notice, too."""
    B, T, _ = state.shape
    place = torch.arange(B, device=state.device)[:, None] + torch.arange(T, device=state.device) + loop
    return torch.where(place % 2 == 0, DRIFT, DRIFT / 4).to(state.dtype)[..., None]


def _defect(state: Tensor, now: Tensor, grown: Tensor) -> float:
    """How far the gradient per unit of log scale, s·g, is from that of a function that ignores scale."""
    H = polar.split(state)
    before, after = (H.scale[..., None] * polar.at_least_float32(g) for g in (now, grown))
    _, turning = polar.radial_turning(H.direction, before)
    moved, size = float((after - turning).norm()), float(turning.norm())
    if moved == 0:
        return 0.0
    return moved / size if size > 0 and math.isfinite(moved) else math.inf


def _radial(gradient: Tensor, state: Tensor) -> float:
    return float(theory.radial_signal(gradient, state).abs().sum())


def _scale_visibility(defect: float, radial_now: float, radial_grown: float, view: Exit) -> Visibility:
    if defect < HALF:
        return "hidden"
    if radial_grown >= HALF * radial_now:
        return "visible"
    # The signal fades with growth: because the softmax is sure of itself, or because the readout saturates?
    return view.visibility


def _nanmean(values: Tensor) -> float:
    return float(values.nanmean())
