"""What an objective sees of the state: which of its terms would notice if the scale, or the mean channel, grew.

The test. A function that ignores scale, L(αH) = L(H), has the gradient ∇L(αH) = ∇L(H)/α, without a radial part. So the
states are multiplied by a large α, the direct gradients are taken again, and α·∇L(αH) is compared with the turning part
of ∇L(H). The relative difference is 0 for a term that ignores scale and about 1 or more for one that reads it raw. α is
large because a normalizer's epsilon then drops out: at α = 1, Lemma 1 leaves a signal of ν = ε/(s² + ε).

Gradients rather than logits are compared, and those of the whole objective with the recurrence cut: so a penalty
counts, a detached penalty does not, and it does not matter how a term reads the state (by an exit, a gate, or a
comparison of loops).

Two growths are tried, since a term may see one and not the other, and the loop carries both.

- Token by token: neighboring tokens grow by different factors.
- Common: all tokens grow by one factor. A readout with one norm over the whole sequence hides this growth, while it
  shows the scales of tokens relative to one another. Tried with the first growth alone, it would pass for visible, and
  nothing would stop all tokens from growing together.

A term sees scale only if it notices both. In both growths, successive loops grow by different factors: a term that
compares the scales of loops does see scale, and a factor common to all loops would hide that.
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
    """||α s ∇L(αH) − s ∇L(H)_turning|| / ||s ∇L(H)_turning|| over all tokens, for growth token by token with α in the
    hundreds: 0 for a term that ignores scale, 1 or more for a raw exit, infinite for a penalty."""
    common_defect: float
    """The same for growth of all tokens by one α, with the turning part replaced by the gradient without the radial
    part that all tokens share: 0 for a term that ignores the common scale."""
    scale: Visibility
    """Hidden if either growth is hidden, token by token or common."""
    mean_fraction: float
    """Mean over tokens of |<g, 1>| / (||g||_2 ||1||_2): how much of the gradient lies along the mean channel. It is
    taken of each token; the mean shared by all tokens, which a LayerNorm over a whole sequence hides, is not tested
    separately."""
    mean: Visibility

    @property
    def relative_only(self) -> bool:
        """Whether the term sees the scales of tokens relative to one another, but not their common scale."""
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
        dtype: the dtype of the computation, which sets the rounding floor for the mean.
    """
    by_token, in_common, further = (
        _Grown(trace, targets, objective, growth)
        for growth in (partial(_token_growth, DRIFT), partial(_common_growth, DRIFT), partial(_token_growth, DRIFT**2))
    )
    found = []
    for term, gradients in now.items():
        for view, state, g in zip(exits, trace.states[1:], gradients, strict=True):
            grown, common = by_token.gradient(term, view.loop), in_common.gradient(term, view.loop)
            if not (g.any() or grown.any()):
                continue
            defect, common_defect = _defect(state, g, grown, _turning), _defect(state, g, common, _without_common)
            hidden = min(defect, common_defect) < HALF
            mean = float(theory.mean_fraction(g if g.any() else grown).nanmean())
            found.append(
                Signal(
                    term=term,
                    loop=view.loop,
                    scale_defect=defect,
                    common_defect=common_defect,
                    scale="hidden" if hidden else _at_larger_scales(state, [g, grown], view, further, term),
                    mean_fraction=mean,
                    mean=_mean_visibility(mean, dtype, state.shape[-1]),
                )
            )
    return tuple(found)


_Growth = Callable[[Tensor, int], Tensor]
"""H_loop (B, T, D) and the loop -> factors (B, T, 1)."""


class _Grown:
    """The direct gradients at grown states αH, multiplied by α: derivatives with respect to H.

    They are computed when first needed: few terms need the growth by `DRIFT`²."""

    def __init__(self, trace: Trace, targets: Tensor, objective: ObjectiveLike, growth: _Growth) -> None:
        self._trace, self._targets, self._objective = trace, targets, objective
        self._factors = [growth(state, loop) for loop, state in enumerate(trace.states)]

    def gradient(self, term: str, loop: int) -> Tensor:
        return self._factors[loop] * self._gradients[term][loop - 1]

    @cached_property
    def _gradients(self) -> Mapping[str, tuple[Tensor, ...]]:
        return direct_gradients(grow(self._trace, self._factors), self._targets, self._objective)


def overall(parts: Sequence[Visibility]) -> Visibility:
    """The visibility to an objective, given that to each of its terms: the best of them."""
    return min(parts, key=("visible", "saturating", "hidden").index)


def seen_by(terms: Sequence[Signal], variable: str) -> tuple[str, ...]:
    """The terms to which `variable` ('scale' or 'mean') is not hidden, each once."""
    return tuple(dict.fromkeys(signal.term for signal in terms if getattr(signal, variable) != "hidden"))


def grow(trace: Trace, factors: Sequence[Tensor]) -> Trace:
    """`trace` with its states multiplied by factors (B, T, 1), as if they had grown; no loop is run."""
    states = tuple(state.detach() * factor for state, factor in zip(trace.states, factors, strict=True))
    return Trace(trace.model, trace.tokens, states, trace.context, trace.grad)


def _token_growth(drift: float, state: Tensor, loop: int) -> Tensor:
    """Factors (B, T, 1): `drift` and a quarter of it, alternating over tokens and over loops."""
    B, T, _ = state.shape
    place = torch.arange(B, device=state.device)[:, None] + torch.arange(T, device=state.device) + loop
    return torch.where(place % 2 == 0, drift, drift / 4).to(state.dtype)[..., None]


def _common_growth(drift: float, state: Tensor, loop: int) -> Tensor:
    """Factors (B, T, 1), the same for all tokens: `drift` and a quarter of it, alternating over loops."""
    return torch.full_like(state[..., :1], drift if loop % 2 == 0 else drift / 4)


def _defect(state: Tensor, now: Tensor, grown: Tensor, blind: Callable[[Tensor, Tensor], Tensor]) -> float:
    """How far the gradient at grown states is from that of a function that ignores scale, relative to the latter.

    Both are multiplied by s, token by token: s·g is the derivative per relative change of the state. Otherwise the
    smallest tokens, whose gradients are the largest, would decide alone.

    Args:
        blind: (direction, gradient) -> the gradient without the part that a function that ignores scale cannot have.
    """
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


def _at_larger_scales(state: Tensor, gradients: list[Tensor], view: Exit, further: _Grown, term: str) -> Visibility:
    """Whether a term that notices growth now will still notice it at larger scales.

    A penalty sees scale at any size: its radial signal does not fade. An exit sees it as its readout does, so where the
    signal fades, the exit's own visibility decides. The order matters: the signal of a raw exit may fade as well, when
    its softmax is certain of the target, and it is visible all the same.
    """
    if view.visibility == "visible":
        return "visible"
    before = max(_radial(g, state) for g in gradients)
    after = _radial(further.gradient(term, view.loop), state)
    return view.visibility if after < HALF * before else "visible"


def _mean_visibility(fraction: float, dtype: torch.dtype, d: int) -> Visibility:
    """Hidden if nearer, in logarithms, to the rounding floor than to 1/√d, the fraction along a direction at random.

    The floor itself would be too strict a limit: a LayerNorm rounds the more, the further the mean is from 0, so that
    the fraction that it leaves reaches the floor for a small mean only.
    """
    return "hidden" if fraction <= math.sqrt(theory.floor(dtype, d) / math.sqrt(d)) else "visible"


def _radial(gradient: Tensor, state: Tensor) -> float:
    return float(theory.radial_signal(gradient, state).abs().sum())
