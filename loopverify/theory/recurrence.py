"""Carry: what a recurrence does to the scale of its state.

Carry is measured on the step as a whole, c = lim rms(F(αH)) / (α rms(H)) as α -> ∞. Counting the calls of norm modules
would not suffice: a block whose last operation is a norm removes scale although there is no norm at the loop boundary.

Shapes: D channels, always last; "..." any leading dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.theory.polar import check_state, scale

__all__ = ["Carry", "CarryKind", "carry", "carry_kind"]

CarryKind = Literal["amplified", "carried", "damped", "removed"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Carry:
    """What a recurrence does to the scale of its state, in the limit of a large one."""

    kind: CarryKind
    factor: float
    """c, the median of `factors`: 2 for a loop that adds its state again, 1 for a pre-norm residual, A for a linear
    state with decay A, 0 behind a norm."""
    factors: Tensor
    """c of each token, (...); NaN for a zero token."""
    ratios: Tensor
    """rms(F(αH)) / (α rms(H)) at each α, (len(alphas), ...), which tends to c."""
    alphas: tuple[float, ...]


def carry(
    step: Callable[[Tensor], Tensor],
    H: Tensor,
    alphas: Sequence[float] = (1e3, 1e4, 1e5),
    tolerance: float = 0.02,
) -> Carry:
    """Measure c = lim rms(F(αH)) / (α rms(H)) as α -> ∞ and classify it.

    The limit is estimated by the slope of rms(F(αH)) between the two largest α, not by the ratio at the largest. For
    F(H) = c·H + a·u the ratio is c + a/(αs) and has an error that fades only like 1/α; the slope is c at any α.

    Args:
        step: state (..., D) -> state (..., D); run without gradients.
        H: a state (..., D); all of its tokens are multiplied by the same α.
        alphas: at least two, increasing, and large compared with the update over the state.
        tolerance: carried means |c − 1| <= tolerance, removed means c <= tolerance.

    Raises:
        InputError: alphas are not increasing, the step changes the shape or returns values that are not finite, or
            every token is zero.
    """
    alphas = tuple(float(alpha) for alpha in alphas)
    if len(alphas) < 2 or alphas[0] <= 0 or any(low >= high for low, high in itertools.pairwise(alphas)):
        raise InputError(f"alphas are {alphas}; expected at least two, positive and increasing")
    check_state(H, "H")
    with torch.no_grad():
        sizes = torch.stack([_size_after(step, H, alpha) for alpha in alphas])
        s = scale(H)
        s = torch.where(s > 0, s, torch.full_like(s, torch.nan))
        factors = (sizes[-1] - sizes[-2]) / ((alphas[-1] - alphas[-2]) * s)
        ratios = sizes / (torch.tensor(alphas, dtype=s.dtype, device=s.device).view(-1, *[1] * s.ndim) * s)
        factor = float(factors.nanmedian())
    if factor != factor:
        raise InputError(f"every token of H {tuple(H.shape)} is zero; expected a state with a scale to carry")
    kind = carry_kind(factor, tolerance)
    return Carry(kind=kind, factor=factor, factors=factors, ratios=ratios, alphas=alphas)


def _size_after(step: Callable[[Tensor], Tensor], H: Tensor, alpha: float) -> Tensor:
    after = step(alpha * H)
    if after.shape != H.shape:
        raise InputError(f"step turned {tuple(H.shape)} into {tuple(after.shape)}; expected the shape of the state")
    sizes = scale(after)
    if not bool(sizes.isfinite().all()):
        raise InputError(
            f"step of a state scaled by {alpha:g} gave values that are not finite in {H.dtype}; "
            "measure carry in float32 or float64, or with smaller alphas"
        )
    return sizes


def carry_kind(factor: float, tolerance: float) -> CarryKind:
    """The kind of a carry factor >= 0: carried within `tolerance` of 1, removed within `tolerance` of 0."""
    if factor > 1 + tolerance:
        return "amplified"
    if factor >= 1 - tolerance:
        return "carried"
    return "damped" if factor > tolerance else "removed"
