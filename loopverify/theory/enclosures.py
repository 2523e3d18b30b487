"""Lemma 2: how a residual loop moves scale and direction, with certified remainders.

Write F(su) = su + b with b = a·u + b_perp and ⟨u, b_perp⟩ = 0. This is possible for any update; for a pre-norm branch,
b depends on the direction u only. Then

    scale      rms(F) = s + a + ρ,                 0 <= ρ <= rms(b_perp)² / (2(s + a))
    direction  F/rms(F) = u + b_perp/s + D,        D bounded in its radial and in its turning part

(Sharma & Vu 2026, Lemma 2, there with O(1/s) and O(1/s²) for ρ and D). All sizes are in rms units; see `polar`.

Shapes: "..." any leading dimensions, one number a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.errors import InputError

__all__ = ["DirectionBounds", "direction_bounds", "epsilon_shift", "rounding", "scale_enclosure"]


def scale_enclosure(s: Tensor, a: Tensor, b_perp_rms: Tensor) -> tuple[Tensor, Tensor]:
    """Certified bounds of rms(su + a·u + b_perp), all (...), in rms units.

    With x = s + a: x <= rms(F) <= x + rms(b_perp)²/(2x), reached in the limit x >> rms(b_perp). If the update
    reverses the state (x <= 0, outside Lemma 2) or dwarfs it, |x| <= rms(F) <= |x| + rms(b_perp) still holds, so that
    the enclosure is valid for every input. It holds in real arithmetic; add `rounding` for computed values.

    Returns:
        low, high: (...).
    """
    x = (s + a).abs()
    # At x = 0 the quadratic bound is infinite, or 0/0 without a turning part; the other bound applies there.
    quadratic = torch.where(x > 0, b_perp_rms.square() / (2 * x), torch.full_like(x, torch.inf))
    return x, x + torch.minimum(quadratic, b_perp_rms)


@dataclass(frozen=True, kw_only=True, eq=False)
class DirectionBounds:
    """Certified bounds of D = F/rms(F) − u − b_perp/s, each (...), in rms units."""

    radial_low: Tensor
    """Lower bound of the radial part: radial_low <= ⟨u, D⟩/d <= 0."""
    turning: Tensor
    """Upper bound of the rms of the rest of D; infinite where s <= rms(b), outside the lemma."""

    @property
    def total(self) -> Tensor:
        """Upper bound of rms(D)."""
        return torch.hypot(self.radial_low, self.turning)


def direction_bounds(s: Tensor, a: Tensor, b_perp_rms: Tensor) -> DirectionBounds:
    """Bounds of the second-order remainder of the direction, all (...), in rms units.

    Radial part: the cosine of the angle turned, minus 1, at least −rms(b_perp)²/(2(s + a)²). Turning part: at most
    rms(b)·rms(b_perp)/(s(s − rms(b))). They hold in real arithmetic; add `rounding` for computed values.
    """
    x = s + a
    b_rms = torch.hypot(a, b_perp_rms)
    inf = torch.full_like(x, torch.inf)
    forward = torch.where(x > 0, -b_perp_rms.square() / (2 * x.square()), -inf)
    # A cosine minus 1 is at least −2, and at least −1 unless the state is reversed.
    radial_low = torch.maximum(forward, torch.where(x > 0, -1.0, -2.0).to(x.dtype))
    turning = torch.where(s > b_rms, b_rms * b_perp_rms / (s * (s - b_rms)), inf)
    return DirectionBounds(
        radial_low=torch.where(b_perp_rms == 0, torch.where(x > 0, 0.0, -2.0).to(x.dtype), radial_low),
        turning=torch.where(b_perp_rms == 0, torch.zeros_like(x), turning),
    )


def rounding(dtype: torch.dtype, d: int) -> float:
    """Bound of the relative error of an rms computed over d channels in `dtype`: (d/2 + 4)·eps.

    The sum of d squares has a relative error of at most (d + 1)·eps/2, in any order of summation; root, division by √d
    and rescaling add one rounding each, and F itself was rounded once. A comparison of a measured rms with an enclosure
    must allow for it: at s = 1e6 the remainder of Lemma 2 is only 1e-12 of the scale, and rounding alone would violate
    the enclosure.
    """
    return (d / 2 + 4) * torch.finfo(dtype).eps


def epsilon_shift(s: Tensor, eps: float) -> Tensor:
    """1 − s/√(s² + ε), (...) -> (...): the share by which a norm's epsilon shrinks its output; at most ε/(2s²).

    The output of a branch B behind the norm changes by at most Lip(B) times this, in rms:
    F_ε(su) = su + b(u) + O(Lip(B)·ε/(2s²)).

    Raises:
        InputError: eps is negative.
    """
    if not eps >= 0:
        raise InputError(f"eps is {eps!r}; expected a number >= 0")
    # For small ε/s², 1 − s/√(s² + ε) cancels; expm1 and log1p do not.
    return -torch.expm1(-0.5 * torch.log1p(eps / s.square()))
