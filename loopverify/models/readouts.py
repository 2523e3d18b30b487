"""Readouts: what may stand between a state and the head, by name, and those that torch does not have.

Shapes: D channels, always last; "..." any leading dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor, nn

from loopverify.errors import InputError

__all__ = ["READOUTS", "DynamicTanh", "TaperedNorm"]


class DynamicTanh(nn.Module):
    """r(H) = γ ⊙ tanh(αH) + β (Zhu et al. 2025, arXiv:2503.10622), with one learned α for all channels.

    It starts at that paper's defaults, α = 1/2, γ = 1, β = 0. Scale is in view while |αH| is small and fades as the
    channels saturate: a blind spot that opens as the state grows.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.5))
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, state: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return torch.tanh(self.alpha * state) * self.weight + self.bias


class TaperedNorm(nn.Module):
    """r(H) = g·RMSNorm(H) + (1 − g)·c ⊙ H: a norm that training takes away (TaperNorm, arXiv:2602.10408).

    The gate g follows the progress of training: 1 (a norm, scale hidden) until `taper[0]`, then a half cosine down to 0
    (a fixed scaling, scale visible) at `taper[1]`. The scaling is c = a·γ with the norm's own gain γ and the scalar a
    that brings a·γ⊙H closest to the norm in least squares, a = E[m/√(s² + ε)] / E[m] with m the mean square of γ⊙H;
    both means are running ones over the calls in training mode while g = 1, and stand still afterwards.

    Unlike in the paper, one gain serves both branches (there the scaling continues with a copy of its own), and the
    norm at hand is the readout's, which its default keeps.
    """

    MEMORY = 0.99
    """The weight that a running mean keeps at each call."""

    gate: Tensor
    """g, a buffer, as are the two means; `set_progress` writes it."""
    matched: Tensor
    energy: Tensor

    def __init__(self, channels: int, *, eps: float, taper: tuple[float, float]) -> None:
        super().__init__()
        start, stop = taper
        if not 0 < start < stop <= 1:
            raise InputError(
                f"taper is {taper}; expected fractions of training 0 < start < stop <= 1: the scaling is calibrated "
                "until start, and alone from stop on"
            )
        self.norm = nn.RMSNorm(channels, eps=eps)
        self.eps = eps
        self.taper = taper
        self.register_buffer("gate", torch.ones(()))
        # Both start at zero, so that the ratio of the two has no bias to correct.
        self.register_buffer("matched", torch.zeros(()))
        self.register_buffer("energy", torch.zeros(()))

    def forward(self, state: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        if self.training:
            self._calibrate(state.detach())
        mixed: Tensor = self.gate * self.norm(state) + (1 - self.gate) * (self.scaling() * state)
        return mixed

    def scaling(self) -> Tensor:
        """c = a·γ, (D,); with a = 1 as long as nothing was calibrated."""
        a = torch.where(self.energy > 0, self.matched / self.energy, 1.0)
        return a * self.norm.weight

    def set_progress(self, fraction: float) -> None:
        """Set the gate to its value at this fraction (0..1) of training."""
        start, stop = self.taper
        passed = min(max((fraction - start) / (stop - start), 0.0), 1.0)
        self.gate.fill_((1 + math.cos(math.pi * passed)) / 2)

    @torch.no_grad()
    def _calibrate(self, state: Tensor) -> None:
        wide = state.to(torch.promote_types(state.dtype, torch.float32))
        energy = (wide * self.norm.weight).square().mean(-1)
        matched = energy * torch.rsqrt(wide.square().mean(-1) + self.eps)
        # Without a branch on the value of the gate, for which an accelerator would have to be waited.
        calibrating = self.gate == 1
        for running, now in ((self.energy, energy), (self.matched, matched)):
            running.lerp_(now.mean().to(running.dtype), (1 - self.MEMORY) * calibrating.to(running.dtype))


class Shape(Protocol):
    """What a readout is built from: fields of `TransformerConfig`."""

    @property
    def d_model(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def taper(self) -> tuple[float, float]: ...


def _rms_norm(shape: Shape) -> nn.Module:
    return nn.RMSNorm(shape.d_model, eps=shape.norm_eps)


READOUTS: Mapping[str, Callable[[Shape], nn.Module | None]] = MappingProxyType(
    {
        "rmsnorm": _rms_norm,
        "raw": lambda shape: None,
        "layernorm": lambda shape: nn.LayerNorm(shape.d_model, eps=shape.norm_eps),
        "final_only": _rms_norm,
        "dynamic_tanh": lambda shape: DynamicTanh(shape.d_model),
        "tapered": lambda shape: TaperedNorm(shape.d_model, eps=shape.norm_eps, taper=shape.taper),
    }
)
"""Every readout by name: the module between state and head, or None where the head reads the state itself. The paper's
four, then two of other papers: one that saturates, and a norm that training takes away."""
