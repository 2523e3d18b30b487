"""What Hypothesis draws: settings that shrink (widths, depths, epsilons, single floats) and seeds of dense Gaussians.

Seeds reach generic directions, which lists of floats rarely do; lists of floats reach edges (zeros, ties, cancellation)
and shrink to a readable example, which seeds never do. Properties that have edges are tested with both.
"""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from properties.blocks import Block, decoder_blocks, directions, generator, mlp_blocks
from properties.heads import READOUTS, Case, case

__all__ = [
    "COUNT",
    "blocks",
    "blocks_with_states",
    "cases",
    "depths",
    "epsilons",
    "scales",
    "seeds",
    "sizes",
    "small_tokens",
    "softcaps",
    "widths",
]

COUNT = 8
"""Independent blocks in one draw."""

seeds = st.integers(0, 2**32 - 1)
widths = st.sampled_from([2, 3, 4, 8, 16, 32, 64, 128])
epsilons = st.sampled_from([0.0, 1e-8, 1e-6, 1e-5])
scales = st.floats(-3, 6).map(lambda exponent: 10.0**exponent)
"""rms scales of states, 1e-3 .. 1e6, uniform in the logarithm."""


depths = st.integers(1, 4)
sizes = st.sampled_from([1.0, 0.1, 10.0])
"""About the rms of one branch's output."""
softcaps = st.sampled_from([None, 2.0, 30.0])


@st.composite
def blocks(
    draw: st.DrawFn,
    *,
    d: st.SearchStrategy[int] = widths,
    eps: st.SearchStrategy[float] = epsilons,
    sublayers: st.SearchStrategy[int] = depths,
    size: st.SearchStrategy[float] = sizes,
) -> tuple[Block, int]:
    """A batch of COUNT random blocks of one family, and their width."""
    width = draw(d)
    common = {"count": COUNT, "d": width, "sublayers": draw(sublayers), "size": draw(size), "eps": draw(eps)}
    # A LayerNorm of two channels is a sign: it has no slope, and the orders of Lemma 2 are trivial there.
    centered = draw(st.booleans()) if width > 2 else False
    if draw(st.booleans()):
        return decoder_blocks(draw(seeds), centered=centered, **common), width
    activation = draw(st.sampled_from(["tanh", "silu", "gelu"]))
    return mlp_blocks(draw(seeds), centered=centered, activation=activation, **common), width


@st.composite
def blocks_with_states(draw: st.DrawFn, tokens: int = 3) -> tuple[Block, Tensor, Tensor]:
    """Blocks with states in polar form: scales s (N, T), each token's its own, and directions u (N, T, D)."""
    block, d = draw(blocks())
    rng = generator(draw(seeds))
    low, high = sorted((draw(st.floats(-3, 6)), draw(st.floats(-3, 6))))
    s = 10.0 ** (low + (high - low) * torch.rand(COUNT, tokens, generator=rng, dtype=torch.float64))
    return block, s, directions(rng, COUNT, tokens, d)


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
    kinds: tuple[str, ...] = READOUTS,
    eps: st.SearchStrategy[float] = epsilons,
    softcap: st.SearchStrategy[float | None] = softcaps,
) -> Case:
    """A random readout with head, states and targets."""
    return case(
        draw(seeds),
        kind=draw(st.sampled_from(kinds)),
        d=draw(widths),
        s=draw(scales),
        eps=draw(eps),
        softcap=draw(softcap),
    )
