"""Readouts r(H), token by token, each with the visibility of scale behind it.

The radial rate of a readout is ṙ(H) = d r(e^t H)/dt at t = 0: its response to growth of the state. Its size relative to
that of r is the visibility factor ν: 1 shows scale as a raw readout does, 0 hides it. Where r is homogeneous
up to its epsilon, ṙ = ν·r exactly, with ν in closed form (Lemma 1 of Sharma & Vu 2026 is ε = 0, ν = 0).

Shapes: D channels, always last; V vocabulary; "..." any leading dimensions. Values keep the dtype of H.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.theory.polar import check_state

__all__ = ["ClampedL2", "DynamicTanh", "Head", "LayerNorm", "RMSNorm", "Raw", "Tapered", "TokenReadout"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenReadout(ABC):
    """A map r of one token's state, (..., D) -> (..., D)."""

    def __call__(self, H: Tensor) -> Tensor:
        """r(H), (..., D) -> (..., D).

        Raises:
            InputError: H is not a floating tensor (..., D), or a gain or bias has other than D channels.
        """
        return self._value(self._checked(H))

    def radial_rate(self, H: Tensor) -> Tensor:
        """ṙ(H) = d r(e^t H)/dt at t = 0, (..., D) -> (..., D)."""
        return self._rate(self._checked(H))

    def visibility(self, H: Tensor) -> Tensor:
        """The visibility factor ν in [0, 1], (..., D) -> (...): ||ṙ(H)|| / ||r(H)||, without a constant bias of r."""
        return self._visibility(self._checked(H))

    @abstractmethod
    def _value(self, H: Tensor) -> Tensor: ...

    @abstractmethod
    def _rate(self, H: Tensor) -> Tensor: ...

    def _visibility(self, H: Tensor) -> Tensor:
        return _norm(self._rate(H)) / _norm(self._value(H))

    def _checked(self, H: Tensor) -> Tensor:
        check_state(H, "H")
        for name, values in vars(self).items():
            if isinstance(values, Tensor) and values.ndim > 0 and values.shape[-1] != H.shape[-1]:
                raise InputError(
                    f"{type(self).__name__}.{name} has {values.shape[-1]} channels, "
                    f"the state {tuple(H.shape)} has {H.shape[-1]}; expected the same"
                )
        return H


@dataclass(frozen=True, kw_only=True, eq=False)
class Raw(TokenReadout):
    """r(H) = H: scale is fully visible, ν = 1."""

    def _value(self, H: Tensor) -> Tensor:
        return H

    def _rate(self, H: Tensor) -> Tensor:
        return H

    def _visibility(self, H: Tensor) -> Tensor:
        return torch.ones_like(H[..., 0])


@dataclass(frozen=True, kw_only=True, eq=False)
class RMSNorm(TokenReadout):
    """r(H) = γ ⊙ H / √(s² + ε), s = rms(H): ν = ε / (s² + ε). With ε = 0 it is undefined (NaN) at H = 0."""

    gain: Tensor | None = None
    """γ, (D,); ones when omitted."""
    eps: float = 1e-6
    """ε >= 0, in units of the squared state."""

    def __post_init__(self) -> None:
        _check_eps(self)

    def _value(self, H: Tensor) -> Tensor:
        return _times(H * torch.rsqrt(_mean_square(H) + self.eps), self.gain)

    def _rate(self, H: Tensor) -> Tensor:
        return self._visibility(H)[..., None] * self._value(H)

    def _visibility(self, H: Tensor) -> Tensor:
        return self.eps / (_mean_square(H)[..., 0] + self.eps)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerNorm(TokenReadout):
    """r(H) = γ ⊙ (H − μ)/√(v + ε) + β with the channels' mean μ and variance v (divided by D): ν = ε / (v + ε).

    The rate is ν times r without β. In addition, r does not change along the all-ones direction: the mean is hidden for
    any ε.
    """

    gain: Tensor | None = None
    """γ, (D,); ones when omitted."""
    bias: Tensor | None = None
    """β, (D,); zeros when omitted."""
    eps: float = 1e-5
    """ε >= 0, in units of the squared state."""

    def __post_init__(self) -> None:
        _check_eps(self)

    def _value(self, H: Tensor) -> Tensor:
        return self._unbiased(H) if self.bias is None else self._unbiased(H) + self.bias

    def _rate(self, H: Tensor) -> Tensor:
        return self._visibility(H)[..., None] * self._unbiased(H)

    def _visibility(self, H: Tensor) -> Tensor:
        return self.eps / (_mean_square(_centered(H))[..., 0] + self.eps)

    def _unbiased(self, H: Tensor) -> Tensor:
        centered = _centered(H)
        return _times(centered * torch.rsqrt(_mean_square(centered) + self.eps), self.gain)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClampedL2(TokenReadout):
    """r(H) = H / max(||H||_2, ε): exactly blind (ν = 0) where ||H||_2 >= ε, raw up to a constant (ν = 1) below."""

    eps: float = 1e-12
    """ε > 0, the smallest divisor, in units of ||H||_2."""

    def __post_init__(self) -> None:
        if not 0 < self.eps < math.inf:
            raise InputError(
                f"ClampedL2.eps is {self.eps!r}; expected a finite number > 0, since r(0) is undefined without it"
            )

    def _value(self, H: Tensor) -> Tensor:
        return H / _norm(H)[..., None].clamp_min(self.eps)

    def _rate(self, H: Tensor) -> Tensor:
        return self._visibility(H)[..., None] * self._value(H)

    def _visibility(self, H: Tensor) -> Tensor:
        return (_norm(H) < self.eps).to(H.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class DynamicTanh(TokenReadout):
    """r(H) = γ ⊙ tanh(αH), saturating: visible at small scales (ν -> 1), fading as the scale grows (ν -> 0)."""

    alpha: float = 0.5
    """α > 0, the inverse of the scale at which channels saturate."""
    gain: Tensor | None = None
    """γ, (D,); ones when omitted."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise InputError(f"DynamicTanh.alpha is {self.alpha!r}; expected a finite number > 0")

    def _value(self, H: Tensor) -> Tensor:
        return _times(torch.tanh(self.alpha * H), self.gain)

    def _rate(self, H: Tensor) -> Tensor:
        x = self.alpha * H
        # 1/cosh² rather than 1 − tanh², which loses all digits where the channel saturates.
        return _times(x / torch.cosh(x).square(), self.gain)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tapered(TokenReadout):
    """r(H) = g·RMSNorm(H) + (1 − g)·c ⊙ H: a norm that is faded out, from g = 1 (norm) to g = 0 (fixed scaling).

    The radial rate is g·ν·RMSNorm(H) + (1 − g)·c ⊙ H: the linear part is fully visible, the norm's part only by ν.
    """

    gate: float
    """g in [0, 1], the share of the norm."""
    norm: RMSNorm
    linear: Tensor | None = None
    """c, (D,), the scaling that replaces the norm; ones when omitted."""

    def __post_init__(self) -> None:
        if not 0 <= self.gate <= 1:
            raise InputError(f"Tapered.gate is {self.gate!r}; expected a number in 0..1")

    def _value(self, H: Tensor) -> Tensor:
        return self.gate * self.norm(H) + (1 - self.gate) * _times(H, self.linear)

    def _rate(self, H: Tensor) -> Tensor:
        return self.gate * self.norm.radial_rate(H) + (1 - self.gate) * _times(H, self.linear)


@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """Logits z = W r(H), or c·tanh(W r(H) / c) with a softcap c.

    A softcap acts after the readout, so behind a norm it does not make scale visible.
    """

    readout: TokenReadout
    weight: Tensor
    """W, (V, D)."""
    softcap: float | None = None
    """c > 0, the largest |logit|; None for none."""

    def __post_init__(self) -> None:
        if self.weight.ndim != 2:
            raise InputError(f"Head.weight has shape {tuple(self.weight.shape)}; expected (V, D)")
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise InputError(f"Head.softcap is {self.softcap!r}; expected a finite number > 0, or None")

    def __call__(self, H: Tensor) -> Tensor:
        """z(H), (..., D) -> (..., V)."""
        z = self._project(self.readout(H))
        return z if self.softcap is None else self.softcap * torch.tanh(z / self.softcap)

    def radial_rate(self, H: Tensor) -> Tensor:
        """ż(H) = d z(e^t H)/dt at t = 0, (..., D) -> (..., V); if it is zero, no loss of z sees the scale."""
        rate = self._project(self.readout.radial_rate(H))
        if self.softcap is None:
            return rate
        return rate / torch.cosh(self._project(self.readout(H)) / self.softcap).square()

    def _project(self, values: Tensor) -> Tensor:
        if values.shape[-1] != self.weight.shape[-1]:
            raise InputError(
                f"Head.weight has {self.weight.shape[-1]} channels, the state {tuple(values.shape)} has "
                f"{values.shape[-1]}; expected the same"
            )
        return values @ self.weight.mT


def _check_eps(norm: RMSNorm | LayerNorm) -> None:
    if not 0 <= norm.eps < math.inf:
        raise InputError(f"{type(norm).__name__}.eps is {norm.eps!r}; expected a finite number >= 0")


def _times(values: Tensor, factor: Tensor | None) -> Tensor:
    return values if factor is None else values * factor


def _mean_square(H: Tensor) -> Tensor:
    return H.square().mean(dim=-1, keepdim=True)


def _centered(H: Tensor) -> Tensor:
    return H - H.mean(dim=-1, keepdim=True)


def _norm(H: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(H, dim=-1)
    return norm
