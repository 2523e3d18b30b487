"""Random residual blocks, many at a time: N independent blocks with weights of their own, run as one batch.

Written in plain tensor algebra, independent of the reference model and of loopverify's own norms.
Shapes: N blocks, T tokens, D channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

__all__ = ["GENERATED", "Block", "BlockRecipe", "directions", "generator", "normal"]

GENERATED: Counter[str] = Counter()
"""Numbers of random blocks and readouts drawn in this session, printed at its end."""

Branch = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """N pre-norm residual blocks F(H) = H + Σ_i B_i(Norm_ε(H + the outputs before)), token by token."""

    branches: tuple[tuple[str, Branch], ...]
    """(name, B_i), each (N, T, D) of normed states -> (N, T, D)."""
    eps: float = 0.0
    centered: bool = False
    """Whether the norm is LayerNorm's (which subtracts the mean) or RMSNorm's."""
    weights: tuple[Tensor, ...] = ()
    """The matrices of all branches, (N, D, D) each, in order."""

    def norm(self, H: Tensor) -> Tensor:
        if self.centered:
            H = H - H.mean(-1, keepdim=True)
        return H / (H.square().mean(-1, keepdim=True) + self.eps).sqrt()

    def outputs(self, H: Tensor) -> list[tuple[str, Tensor]]:
        """What each branch adds to the stream, in order."""
        added = []
        for name, branch in self.branches:
            out = branch(self.norm(H))
            added.append((name, out))
            H = H + out
        return added

    def step(self, H: Tensor) -> Tensor:
        for _, branch in self.branches:
            H = H + branch(self.norm(H))
        return H

    def limit(self, u: Tensor) -> Tensor:
        """Σ_i B_i(Norm_0(u)): the update at infinite scale, where every branch sees the same direction."""
        normed = replace(self, eps=0.0).norm(u)
        return torch.stack([branch(normed) for _, branch in self.branches]).sum(0)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def directions(rng: torch.Generator, *shape: int) -> Tensor:
    """Random directions (..., D) with rms 1."""
    u = normal(rng, *shape)
    return u / u.square().mean(-1, keepdim=True).sqrt()


@dataclass(frozen=True, kw_only=True)
class BlockRecipe:
    """The parameters that determine a batch of random blocks: a failing example prints them."""

    family: Literal["mlp", "decoder"] = "mlp"
    """mlp: x -> W₂ act(W₁ x) in every sublayer; decoder: causal attention and SwiGLU alternately, attention first."""
    seed: int
    d: int
    sublayers: int = 1
    size: float = 1.0
    """Approximate rms of one branch's output."""
    eps: float = 0.0
    centered: bool = False
    activation: Literal["tanh", "silu", "gelu"] = "tanh"
    count: int = 8
    """N, independent blocks with weights of their own."""

    def build(self) -> Block:
        rng = generator(self.seed)
        made = [self._branch(rng, i) for i in range(self.sublayers)]
        GENERATED["blocks"] += self.count
        return Block(
            branches=tuple((name, branch) for name, branch, _ in made),
            eps=self.eps,
            centered=self.centered,
            weights=tuple(W for _, _, weights in made for W in weights),
        )

    def _branch(self, rng: torch.Generator, i: int) -> tuple[str, Branch, tuple[Tensor, ...]]:
        def matrix() -> Tensor:
            return normal(rng, self.count, self.d, self.d) / self.d**0.5

        if self.family == "mlp":
            W1, W2, act = matrix(), self.size * matrix(), ACTIVATIONS[self.activation]
            return f"{i}.mlp", lambda x: act(x @ W1.mT) @ W2.mT, (W1, W2)
        if i % 2 == 0:
            Q, K, V, out = matrix(), matrix(), matrix(), self.size * matrix()
            return f"{i}.attention", lambda x: _attend(x @ Q.mT, x @ K.mT, x @ V.mT) @ out.mT, (Q, K, V, out)
        gate, up, down = matrix(), matrix(), self.size * matrix()
        silu = ACTIVATIONS["silu"]
        return f"{i}.swiglu", lambda x: (silu(x @ gate.mT) * (x @ up.mT)) @ down.mT, (gate, up, down)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    T, D = q.shape[-2:]
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    return (q @ k.mT / D**0.5).masked_fill(future, -torch.inf).softmax(-1) @ v
