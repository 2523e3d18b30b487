"""What Hypothesis draws: settings that shrink (widths, depths, epsilons, single floats) and seeds of dense Gaussians.

Seeds give generic directions, which lists of floats rarely do; lists of floats give edge cases (zeros, ties,
cancellation) and shrink to readable examples, which seeds never do. Properties with edge cases are tested with both.

Blocks and heads are drawn as recipes and built inside the test: a failing example then prints as one line.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from properties.blocks import Block, BlockRecipe, directions, generator
from properties.heads import READOUTS, CaseRecipe

__all__ = [
    "Situation",
    "blocks",
    "cases",
    "depths",
    "epsilons",
    "scales",
    "seeds",
    "situations",
    "sizes",
    "small_tokens",
    "softcaps",
    "widths",
]

seeds = st.integers(0, 2**32 - 1)
widths = st.sampled_from([2, 3, 4, 8, 16, 32, 64, 128])
epsilons = st.sampled_from([0.0, 1e-8, 1e-6, 1e-5])
scales = st.floats(-3, 6).map(lambda exponent: 10.0**exponent)
"""rms scales of states, 1e-3 .. 1e6, uniform in the logarithm."""


depths = st.integers(1, 4)
sizes = st.sampled_from([1.0, 0.1, 10.0])
"""Approximate rms of one branch's output."""
softcaps = st.sampled_from([None, 2.0, 30.0])


@st.composite
def blocks(
    draw: st.DrawFn,
    *,
    d: st.SearchStrategy[int] = widths,
    eps: st.SearchStrategy[float] = epsilons,
    sublayers: st.SearchStrategy[int] = depths,
    size: st.SearchStrategy[float] = sizes,
) -> BlockRecipe:
    """A batch of random blocks of one family."""
    width = draw(d)
    return BlockRecipe(
        family=draw(st.sampled_from(["mlp", "decoder"])),
        seed=draw(seeds),
        d=width,
        sublayers=draw(sublayers),
        size=draw(size),
        eps=draw(eps),
        # A LayerNorm of two channels is a sign: it has no slope, and Lemma 2 is trivial there.
        centered=width > 2 and draw(st.booleans()),
        activation=draw(st.sampled_from(["tanh", "silu", "gelu"])),
    )


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Blocks, and states for them."""

    block: BlockRecipe
    seed: int
    low: float
    high: float
    """log10 of the range from which each token's scale is drawn separately."""
    tokens: int = 3

    def build(self) -> tuple[Block, Tensor, Tensor]:
        """The blocks, scales s (N, T) and directions u (N, T, D)."""
        rng = generator(self.seed)
        shape = (self.block.count, self.tokens)
        exponents = self.low + (self.high - self.low) * torch.rand(*shape, generator=rng, dtype=torch.float64)
        return self.block.build(), 10.0**exponents, directions(rng, *shape, self.block.d)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Any block, and states of scales 1e-3 .. 1e6."""
    low, high = sorted((draw(st.floats(-3, 6)), draw(st.floats(-3, 6))))
    return Situation(block=draw(blocks()), seed=draw(seeds), low=low, high=high)


@st.composite
def small_tokens(draw: st.DrawFn, count: int = 1, limit: float = 10.0) -> list[Tensor]:
    """`count` vectors of the same 2 to 4 channels, of which the first is not (nearly) zero; they shrink to integers."""
    d = draw(st.integers(2, 4))
    channel = st.floats(-limit, limit, allow_subnormal=False).map(lambda x: x if abs(x) > 1e-6 else 0.0)
    first, *others = (draw(st.lists(channel, min_size=d, max_size=d)) for _ in range(count))
    if max(map(abs, first)) < 1e-3:
        first[0] = 1.0
    return [torch.tensor(vector, dtype=torch.float64) for vector in (first, *others)]


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    kinds: tuple[str, ...] = READOUTS,
    eps: st.SearchStrategy[float] = epsilons,
    softcap: st.SearchStrategy[float | None] = softcaps,
) -> CaseRecipe:
    """A random readout with head, states and targets."""
    return CaseRecipe(
        seed=draw(seeds),
        kind=draw(st.sampled_from(kinds)),
        d=draw(widths),
        s=draw(scales),
        eps=draw(eps),
        softcap=draw(softcap),
    )
