"""Random residual blocks, many at a time: N independent blocks with weights of their own, run as one batch.

Written out in plain tensor algebra, apart from the reference model and from loopverify's own norms.
Shapes: N blocks, T tokens, D channels, M hidden channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["GENERATED", "Block", "decoder_blocks", "directions", "generator", "mlp_blocks", "normal"]

GENERATED: Counter[str] = Counter()
"""How many random blocks (and readouts) this session has drawn; printed at its end."""

Branch = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """N pre-norm residual blocks F(H) = H + Σ_i B_i(Norm_ε(H + the outputs before)), each token normed by itself."""

    branches: tuple[tuple[str, Branch], ...]
    """(name, B_i), each (N, T, D) of normed states -> (N, T, D)."""
    eps: float = 0.0
    centered: bool = False
    """Whether the norm is LayerNorm's (which subtracts the mean) or RMSNorm's."""
    weights: tuple[Tensor, ...] = ()
    """The matrices of an MLP block's branches, for bounds on how steep they are."""

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


def mlp_blocks(
    seed: int,
    *,
    count: int,
    d: int,
    sublayers: int = 1,
    size: float = 1.0,
    eps: float = 0.0,
    centered: bool = False,
    activation: str = "tanh",
) -> Block:
    """Blocks of MLP branches x -> W₂ act(W₁ x); `size` is about the rms of one branch's output."""
    rng, hidden, act = generator(seed), max(2, d), ACTIVATIONS[activation]
    weights = []
    branches = []
    for i in range(sublayers):
        W1 = normal(rng, count, hidden, d) / d**0.5
        W2 = normal(rng, count, d, hidden) * size / hidden**0.5
        weights += [W1, W2]
        branches.append((f"mlp.{i}", lambda x, W1=W1, W2=W2: act(x @ W1.mT) @ W2.mT))
    GENERATED["blocks"] += count
    return Block(branches=tuple(branches), eps=eps, centered=centered, weights=tuple(weights))


def decoder_blocks(
    seed: int, *, count: int, d: int, sublayers: int = 2, size: float = 1.0, eps: float = 0.0, centered: bool = False
) -> Block:
    """Blocks of causal attention and SwiGLU branches in turn, attention first; `size` as in `mlp_blocks`."""
    rng = generator(seed)
    branches = tuple(
        (f"{i}.swiglu", _swiglu(rng, count, d, size)) if i % 2 else (f"{i}.attention", _attention(rng, count, d, size))
        for i in range(sublayers)
    )
    GENERATED["blocks"] += count
    return Block(branches=branches, eps=eps, centered=centered)


def _attention(rng: torch.Generator, count: int, d: int, size: float) -> Branch:
    Q, K, V, out = (normal(rng, count, d, d) / d**0.5 for _ in range(4))

    def attention(x: Tensor) -> Tensor:
        T = x.shape[1]
        scores = (x @ Q.mT) @ (x @ K.mT).mT / d**0.5
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        return size * (scores.masked_fill(future, -torch.inf).softmax(-1) @ (x @ V.mT)) @ out.mT

    return attention


def _swiglu(rng: torch.Generator, count: int, d: int, size: float) -> Branch:
    gate, up = (normal(rng, count, d, d) / d**0.5 for _ in range(2))
    down = normal(rng, count, d, d) / d**0.5

    def swiglu(x: Tensor) -> Tensor:
        return size * (torch.nn.functional.silu(x @ gate.mT) * (x @ up.mT)) @ down.mT

    return swiglu
