"""Looped models whose every number is known in closed form. Shapes: B batch, T tokens, D channels, V vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import loopverify as lv

D, V = 8, 5
TOKENS = torch.tensor([[0, 1, 2, 3], [4, 3, 2, 1]])
TARGETS = torch.tensor([[1, 2, 3, 4], [3, 2, 1, 0]])
HEAD = torch.randn(V, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
_DIRECTIONS = torch.randn(V, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def rms(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True).sqrt()


def raw(state: Tensor) -> Tensor:
    return state @ HEAD.T.to(state.dtype)


def rmsnorm(state: Tensor, eps: float = 0.0) -> Tensor:
    return raw(state / (state.square().mean(-1, keepdim=True) + eps).sqrt())


def layernorm(state: Tensor) -> Tensor:
    centered = state - state.mean(-1, keepdim=True)
    return raw(centered / rms(centered))


def looped(
    step: Callable[[Tensor], Tensor],
    readout: Callable[[Tensor], Tensor] = rmsnorm,
    *,
    start: float = 1.0,
    trained_loops: int = 4,
    dtype: torch.dtype = torch.float64,
) -> lv.Looped:
    """A model whose H_0 has rms `start` at every token."""
    table = (start * _DIRECTIONS / rms(_DIRECTIONS)).to(dtype)
    return lv.Looped(
        embed=lambda tokens: (table[tokens], None),
        step=lambda state, context, loop: step(state),
        readout=lambda state, context, loop, loops: readout(state),
        trained_loops=trained_loops,
        name="closed form",
        vocab_size=V,
    )


def radial_step(decay: float, push: float) -> Callable[[Tensor], Tensor]:
    """F(su) = (decay·s + push)·u: no turning at all, a = push + (decay − 1)·s."""
    return lambda state: decay * state + push * state / rms(state)


def turn(angle: float, size: float) -> Callable[[Tensor], Tensor]:
    """Turn the first two channels by `angle` and multiply the state by `size`; exact for any state."""
    rotation = torch.eye(D, dtype=torch.float64)
    c, s = torch.cos(torch.tensor(angle)).item(), torch.sin(torch.tensor(angle)).item()
    rotation[:2, :2] = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    return lambda state: size * state @ rotation.T.to(state.dtype)
