"""Tiny reference recurrences whose carry and scale are known in closed form: what an audit must get right.

Each factory makes a `Looped` around one `TinyBlock`, whose residual branch b(u) = push·u + turn·v, v ⊥ u, moves the
scale by exactly `push`. N(H) = H/rms(H) = u; tokens are embedded at scale s_0 = 1. Where the branch does not turn
(turn = 0) the scale after k loops is a formula of k:

| factory           | H_k = F(H_{k-1})                     | carry        | s_k with turn = 0, push > 0   |
|-------------------|--------------------------------------|--------------|-------------------------------|
| `pre_norm`        | H + b(N(H))                          | 1, carried   | 1 + k·push                    |
| `sandwich`        | H + N(b(N(H)))                       | 1, carried   | 1 + k                         |
| `doubling`        | H + (H + b(N(H)))                    | 2, amplified | 2^k + push·(2^k − 1)          |
| `linear_decay`    | A·H + b(N(H))                        | A, damped    | A^k + push·(1 − A^k)/(1 − A)  |
| `post_norm`       | N(H + b(H))                          | 0, removed   | 1                             |
| `deep_norm`       | N(α·H + b(H))                        | 0, removed   | 1                             |
| `input_injection` | N(x + b(N(x))), x = (1 − β)·H + β·H_0 | 0, removed  | 1                             |

Shapes: D channels, V vocabulary, "..." any leading dimensions; everything works token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from loopverify.errors import InputError, unknown
from loopverify.looped import Looped

__all__ = [
    "FACTORIES",
    "TinyBlock",
    "deep_norm",
    "doubling",
    "input_injection",
    "linear_decay",
    "post_norm",
    "pre_norm",
    "sandwich",
]

TINY = 1e-12
"""Added to mean squares: it keeps a zero token finite, and shows nowhere else."""

_Map = Callable[[Tensor], Tensor]


class TinyBlock(nn.Module):
    """A table of tokens of scale 1, one residual branch, and a head.

    Args:
        push: a_rad, what the branch adds to the scale of a state of scale 1.
        turn: the factor on the part that only turns the state.
        readout: 'rmsnorm' hides the scale from the head, 'raw' shows it.
        seed: of the weights; torch's global random numbers are not touched.

    Raises:
        InputError: unknown readout.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 11,
        d_model: int = 16,
        push: float = 0.5,
        turn: float = 0.5,
        readout: Literal["rmsnorm", "raw"] = "rmsnorm",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if readout not in ("rmsnorm", "raw"):
            raise unknown("readout", readout, ("rmsnorm", "raw"))
        self.push, self.turn, self.readout_kind = push, turn, readout
        generator = torch.Generator().manual_seed(seed)

        def normal(rows: int) -> Tensor:
            return torch.randn(rows, d_model, generator=generator, device="cpu")

        self.table = nn.Parameter(unit(normal(vocab_size)))
        # Rows of length about 1: a state of scale 1 gives projections of scale 1.
        self.inner, self.outer, self.head = (
            nn.Parameter(normal(rows) / d_model**0.5) for rows in (d_model, d_model, vocab_size)
        )

    def embed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) int64 -> H_0 (B, T, D), which is the context, too."""
        state = self.table[tokens]
        return state, state

    def branch(self, state: Tensor) -> Tensor:
        """b(H) = push·H + turn·v, (..., D) -> (..., D): v is W₂ tanh(W₁ H) without its part along H."""
        v = torch.tanh(state @ self.inner.mT) @ self.outer.mT
        along = (v * state).mean(-1, keepdim=True) / (state.square().mean(-1, keepdim=True) + TINY)
        return self.push * state + self.turn * (v - along * state)

    def readout(self, state: Tensor, context: Tensor, loop: int, loops: int) -> Tensor:
        """(..., D) -> logits (..., V)."""
        return (unit(state) if self.readout_kind == "rmsnorm" else state) @ self.head.mT

    def looped(self, name: str, step: Callable[[Tensor, Tensor], Tensor], **parts: Any) -> Looped:
        """H_k = step(H_{k-1}, H_0) around this block; `parts` are further fields of `Looped`."""
        return Looped(
            embed=self.embed,
            step=lambda state, context, loop: step(state, context),
            readout=self.readout,
            trained_loops=4,
            name=name,
            vocab_size=len(self.table),
            module=self,
            **parts,
        )

    def residual(self, name: str, branches: Mapping[str, _Map]) -> Looped:
        """H_k = H_{k-1} + the sum of the branches, each of H_{k-1}."""

        def added(state: Tensor, context: Tensor, loop: int) -> list[tuple[str, Tensor]]:
            return [(branch, of(state)) for branch, of in branches.items()]

        def step(state: Tensor, context: Tensor) -> Tensor:
            for _, output in added(state, context, 0):
                state = state + output
            return state

        return self.looped(name, step, branches=added)


def unit(state: Tensor) -> Tensor:
    """N(H) = H / rms(H), (..., D) -> (..., D)."""
    return state * torch.rsqrt(state.square().mean(-1, keepdim=True) + TINY)


def pre_norm(block: TinyBlock | None = None) -> Looped:
    """The paper's loop: carry 1. Behind an RMSNorm readout, the blind spot itself (Sharma & Vu 2026, section 2)."""
    block = block or TinyBlock()
    return block.residual("pre_norm", {"branch": lambda H: block.branch(unit(H))})


def sandwich(block: TinyBlock | None = None) -> Looped:
    """Norms on both sides of the branch (as inside Ouro's layers): carry 1, and |s_k − s_{k−1}| <= 1 whatever b is."""
    block = block or TinyBlock()
    return block.residual("sandwich", {"branch": lambda H: unit(block.branch(unit(H)))})


def doubling(block: TinyBlock | None = None) -> Looped:
    """A loop that adds its own residual output to its input once more: carry 2."""
    block = block or TinyBlock()
    return block.residual("doubling", {"skip": lambda H: H, "branch": lambda H: block.branch(unit(H))})


def linear_decay(block: TinyBlock | None = None, decay: float = 0.5) -> Looped:
    """A linear state with decay A: carry A. The scale settles at push/(1 − A), up to turning.

    Raises:
        InputError: the decay is not in (0, 1).
    """
    if not 0 < decay < 1:
        raise InputError(f"decay is {decay!r}; expected a factor in (0, 1)")
    block = block or TinyBlock()
    return block.residual(
        "linear_decay", {"decay": lambda H: (decay - 1) * H, "branch": lambda H: block.branch(unit(H))}
    )


def post_norm(block: TinyBlock | None = None) -> Looped:
    """The original transformer's block, which ends in a norm: carry 0 without any norm at the loop boundary."""
    block = block or TinyBlock()
    return block.looped("post_norm", lambda H, _: unit(H + block.branch(H)))


def deep_norm(block: TinyBlock | None = None, alpha: float = 2.0) -> Looped:
    """A post-norm block with a weighted skip (DeepNet, arXiv:2203.00555): carry 0, and a turn smaller by 1/α."""
    block = block or TinyBlock()
    return block.looped("deep_norm", lambda H, _: unit(alpha * H + block.branch(H)))


def input_injection(block: TinyBlock | None = None, share: float = 0.5) -> Looped:
    """A state into which every loop mixes the embedding again, β = `share`, and which ends in a norm (Huginn,
    arXiv:2502.05171, with a fixed in place of a learned adapter): carry 0, the scale pinned at 1."""
    block = block or TinyBlock()

    def step(state: Tensor, embedded: Tensor) -> Tensor:
        mixed = (1 - share) * state + share * embedded
        return unit(mixed + block.branch(unit(mixed)))

    return block.looped("input_injection", step)


FACTORIES: Mapping[str, Callable[..., Looped]] = MappingProxyType(
    {
        factory.__name__: factory
        for factory in (pre_norm, sandwich, doubling, linear_decay, post_norm, deep_norm, input_injection)
    }
)
"""Every reference recurrence by name; each can be called without arguments."""
