"""A state in polar form: H = s·u, token by token, and an update split into a radial and a turning part.

Everything here is in rms units: rms(v) = ||v||_2 / √d and ⟨x, y⟩ = Σ_i x_i y_i / d, so that a vector of ones has rms 1
at any width. To convert: ||H||_2 = √d·s, and the paper's "ã" is d·a_rad (Sharma & Vu 2026, section 2).

Shapes: D channels, always last; "..." any leading dimensions. Half precisions are measured in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.errors import InputError

__all__ = ["Polar", "at_least_float32", "check_state", "direction", "inner", "radial_turning", "scale", "split"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Polar:
    """A state in polar form."""

    scale: Tensor
    """s = rms(H), (...)."""
    direction: Tensor
    """u with rms(u) = 1, (..., D); all zeros where H is zero."""

    @property
    def state(self) -> Tensor:
        """H = s·u, (..., D)."""
        return self.scale[..., None] * self.direction


def scale(H: Tensor) -> Tensor:
    """s = rms(H) = ||H||_2 / √d, (..., D) -> (...).

    No intermediate result overflows or underflows if s itself does not. A token with an infinite channel has s = inf,
    one with a NaN has s = NaN. At H = 0, where the norm is not differentiable, the gradient is the subgradient 0.

    Raises:
        InputError: H is not a floating tensor (..., D) with D >= 1.
    """
    H = at_least_float32(check_state(H, "H"))
    unit = _largest(H)
    # ∂s/∂H = H/(d·s) for any unit, because the unit is detached: autograd treats it as a constant.
    relative: Tensor = torch.linalg.vector_norm(H / unit, dim=-1) / H.shape[-1] ** 0.5
    return unit[..., 0] * relative


def direction(H: Tensor) -> Tensor:
    """u = H / rms(H), (..., D) -> (..., D), with rms(u) = 1.

    A zero token has no direction; it gets u = 0, so that H = s·u still holds, no NaN arises and the gradient is 0. Test
    `scale(H) > 0` where a unit direction is needed.

    Raises:
        InputError: as `scale`.
    """
    return split(H).direction


def split(H: Tensor) -> Polar:
    """H = s·u, (..., D) -> scale (...) and direction (..., D); see `scale` and `direction`.

    Raises:
        InputError: as `scale`.
    """
    H = at_least_float32(check_state(H, "H"))
    s = scale(H)
    # Divided twice: first by the largest channel, so that 1/s cannot overflow for a subnormal s.
    unit = _largest(H)
    relative = (s / unit[..., 0])[..., None]
    u = (H / unit) / torch.where(relative == 0, torch.ones_like(relative), relative)
    return Polar(scale=s, direction=torch.where(relative == 0, torch.zeros_like(u), u))


def inner(x: Tensor, y: Tensor) -> Tensor:
    """The rms inner product Σ_i x_i y_i / d, (..., D) and (..., D) -> (...).

    Raises:
        InputError: the channels differ, or a tensor is not floating.
    """
    x, y = at_least_float32(check_state(x, "x")), at_least_float32(check_state(y, "y"))
    if x.shape[-1] != y.shape[-1]:
        raise InputError(
            f"an inner product of {tuple(x.shape)} with {tuple(y.shape)}; expected the same channels (last dimension)"
        )
    return (x * y).sum(-1) / x.shape[-1]


def radial_turning(u: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Split an update b = a_rad·u + b_perp with ⟨u, b_perp⟩ = 0 (Lemma 2).

    Args:
        u: directions (..., D) with rms(u) = 1, as `direction` gives them. Where u = 0, all of b is turning.
        b: updates (..., D).

    Returns:
        a_rad = ⟨u, b⟩/d (...), rms units, and b_perp (..., D).

    Raises:
        InputError: the channels differ, or a tensor is not floating.
    """
    a_rad = inner(u, b)
    return a_rad, at_least_float32(b) - a_rad[..., None] * at_least_float32(u)


def at_least_float32(values: Tensor) -> Tensor:
    """`values` in float32 if they are in a half precision; float32 and float64 are unchanged."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def check_state(H: Tensor, name: str) -> Tensor:
    """`H`, if it is a floating tensor (..., D) with D >= 1.

    Raises:
        InputError: it is not.
    """
    if not isinstance(H, Tensor):
        raise InputError(f"{name} is a {type(H).__name__}; expected a floating tensor (..., D)")
    if not H.is_floating_point() or H.ndim < 1 or H.shape[-1] < 1:
        raise InputError(
            f"{name} is {H.dtype} {tuple(H.shape)}; expected a floating tensor (..., D) with the channels last"
        )
    return H


def _largest(H: Tensor) -> Tensor:
    """The largest |channel| of each token (..., 1), a constant; 1 where that is 0 or not finite."""
    largest = H.detach().abs().amax(dim=-1, keepdim=True)
    return torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
