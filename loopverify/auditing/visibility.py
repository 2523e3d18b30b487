"""What an objective sees of the state: which of its terms would notice if scale, or the mean channel, grew.

A term hides scale if its gradient is that of a function that ignores it: α·∇L(αH) = ∇L(H), without a radial part. This
is asked of the whole objective with the recurrence cut, so that a penalty counts, a detached one does not, and it does
not matter by which way a term reads the state. A normalizer's epsilon drops out, because α is large.

The states grow in two ways: every token by another factor than its neighbors, and all tokens by one factor, which a
readout that is normalized over a whole sequence hides while it shows the tokens' relative scales. A loop carries both,
so that a term must notice both. Loops grow by different factors either way: comparing them is seeing scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from loopverify.auditing.exit_sweep import DRIFT, HALF, Exit, Visibility
from loopverify.auditing.gradients import ObjectiveLike, direct_gradients
from loopverify.looped import Trace
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
    common_defect: float
    """The same for growth by one α for all tokens, without the radial part that is common to all tokens: 0 for a term
    that ignores their common scale."""
    scale: Visibility
    """Hidden if either growth is: tokens apart, or all together."""
    mean_fraction: float
    """Mean over tokens of |<g, 1>| / (||g||_2 ||1||_2): how much of the gradient lies along the mean channel. The mean
    that all tokens share is not asked for by itself; a LayerNorm over a whole sequence hides only that one."""
    mean: Visibility

    @property
    def relative_only(self) -> bool:
        """Whether the term sees the scales of tokens relative to one another and not their common scale."""
        return self.scale_defect >= HALF > self.common_defect


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
    apart, together, far = (
        _Grown(trace, targets, objective, way)
        for way in (partial(_apart, DRIFT), partial(_together, DRIFT), partial(_apart, DRIFT**2))
    )
    found = []
    for term, gradients in now.items():
        for view, state, g in zip(exits, trace.states[1:], gradients, strict=True):
            later, common = apart.gradient(term, view.loop), together.gradient(term, view.loop)
            if not (g.any() or later.any()):
                continue
            defect, common_defect = _defect(state, g, later, _turning), _defect(state, g, common, _without_common)
            mean = float(theory.mean_fraction(g if g.any() else later).nanmean())
            found.append(
                Signal(
                    term=term,
                    loop=view.loop,
                    scale_defect=defect,
                    common_defect=common_defect,
                    scale="hidden" if min(defect, common_defect) < HALF else _seen(state, [g, later], view, far, term),
                    mean_fraction=mean,
                    mean=_mean_visibility(mean, dtype, state.shape[-1]),
                )
            )
    return tuple(found)


_Growth = Callable[[Tensor, int], Tensor]
"""H_loop (B, T, D) and the loop -> factors (B, T, 1)."""


class _Grown:
    """Direct gradients at states that have grown, times the growth: per unit of the states as they are."""

    def __init__(self, trace: Trace, targets: Tensor, objective: ObjectiveLike, growth: _Growth) -> None:
        self._trace, self._targets, self._objective = trace, targets, objective
        self._factors = [growth(state, loop) for loop, state in enumerate(trace.states)]

    def gradient(self, term: str, loop: int) -> Tensor:
        return self._factors[loop] * self._gradients[term][loop - 1]

    @cached_property
    def _gradients(self) -> Mapping[str, tuple[Tensor, ...]]:
        return direct_gradients(grow(self._trace, self._factors), self._targets, self._objective)


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


def _apart(drift: float, state: Tensor, loop: int) -> Tensor:
    """Factors (B, T, 1), `drift` or a quarter of it by turns of tokens and of loops."""
    B, T, _ = state.shape
    place = torch.arange(B, device=state.device)[:, None] + torch.arange(T, device=state.device) + loop
    return torch.where(place % 2 == 0, drift, drift / 4).to(state.dtype)[..., None]


def _together(drift: float, state: Tensor, loop: int) -> Tensor:
    """Factors (B, T, 1), the same for all tokens: `drift` or a quarter of it by turns of loops."""
    return torch.full_like(state[..., :1], drift if loop % 2 == 0 else drift / 4)


def _defect(state: Tensor, now: Tensor, grown: Tensor, blind: Callable[[Tensor, Tensor], Tensor]) -> float:
    """How far the gradient per unit of log scale, s·g, is from that of a function that ignores scale."""
    H = polar.split(state)
    before, after = (H.scale[..., None] * polar.at_least_float32(g) for g in (now, grown))
    expected = blind(H.direction, before)
    moved, size = float((after - expected).norm()), float(expected.norm())
    if moved == 0:
        return 0.0
    return moved / size if size > 0 and math.isfinite(moved) else math.inf


def _turning(direction: Tensor, gradient: Tensor) -> Tensor:
    """`gradient` without the radial part of each token."""
    return polar.radial_turning(direction, gradient)[1]


def _without_common(direction: Tensor, gradient: Tensor) -> Tensor:
    """`gradient` without the radial part that all tokens share."""
    return gradient - direction * ((gradient * direction).sum() / direction.square().sum())


def _seen(state: Tensor, gradients: list[Tensor], view: Exit, far: _Grown, term: str) -> Visibility:
    """How a term that notices growth will go on: a penalty sees scale at any size, an exit as its readout does.

    The signal of a raw exit may fade, too, when the softmax is sure; it is visible all the same.
    """
    if view.visibility == "visible":
        return "visible"
    before = max(_radial(g, state) for g in gradients)
    after = _radial(far.gradient(term, view.loop), state)
    return view.visibility if after < HALF * before else "visible"


def _mean_visibility(fraction: float, dtype: torch.dtype, d: int) -> Visibility:
    """Hidden when nearer (in logarithms) to the floor of rounding than to 1/√d, the share of any other direction.

    At the floor itself it is only for a small mean: a LayerNorm rounds more, the further the mean is from 0.
    """
    return "hidden" if fraction <= math.sqrt(theory.floor(dtype, d) / math.sqrt(d)) else "visible"


def _radial(gradient: Tensor, state: Tensor) -> float:
    return float(theory.radial_signal(gradient, state).abs().sum())
