"""The orders of Lemma 2: the remainder of the scale falls as 1/s, that of the direction as 1/s², for one sublayer and
for several, with and without an epsilon. A bound may hold because it is wide; an order cannot."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from loopverify.theory import radial_turning
from properties.blocks import Block, BlockRecipe, directions, generator
from properties.strategies import blocks, epsilons, seeds

SCALES = np.logspace(2, 6, 9)

# Fits start at s = 1e2, where the next order is still some percent: rms(b)/s, times the steepness of the later
# branches. A relative excess e at that one of nine points moves a least-squares slope over four decades by 0.06·e:
# 0.01 allows 15 % (measured: a slope is off by 0.0015 at most). At s = 1e6, float64 resolves the scale to 1e-10
# with a remainder of 1e-6, and the direction to 1e-16 with one of 1e-12.
SLOPE = 0.01

wide = st.sampled_from([8, 16, 32, 64, 128])
"""A LayerNorm of few channels can be so steep (where these nearly agree) that its asymptotics begin beyond 1e2."""


def rms(x: Tensor) -> Tensor:
    return x.square().mean(-1).sqrt()


def slopes(curve: Tensor) -> np.ndarray:
    """Log-log slope of each block's remainder, (9, N, T) -> (N,), root mean square over its tokens: the leading
    coefficient of a single token of several sublayers can happen to be zero."""
    sizes = curve.square().mean(-1).sqrt().numpy()
    return np.polyfit(np.log(SCALES), np.log(sizes), 1)[0]


def remainders(block: Block, u: Tensor) -> tuple[Tensor, Tensor]:
    """Measured against the update at infinite scale: rms(F) − (s + a) and rms(F/rms(F) − u − b_perp/s), (9, N, T)."""
    a, b_perp = radial_turning(u, block.limit(u))
    states = [block.step(s * u) for s in SCALES]
    scale = torch.stack([rms(F) - s - a for s, F in zip(SCALES, states, strict=True)])
    turned = [F / rms(F)[..., None] - u - b_perp / s for s, F in zip(SCALES, states, strict=True)]
    return scale, torch.stack([rms(D) for D in turned])


one = blocks(d=wide, sublayers=st.just(1), size=st.just(1.0), eps=epsilons)
several = blocks(d=wide, sublayers=st.integers(2, 4), size=st.just(1.0), eps=epsilons)


@given(one, seeds)
def test_orders_of_one_sublayer(recipe: BlockRecipe, seed: int) -> None:
    check_orders(recipe, seed)


@given(several, seeds)
def test_orders_of_several_sublayers(recipe: BlockRecipe, seed: int) -> None:
    check_orders(recipe, seed)


def check_orders(recipe: BlockRecipe, seed: int) -> None:
    scale, turned = remainders(recipe.build(), directions(generator(seed), recipe.count, 8, recipe.d))
    assert np.abs(slopes(scale) + 1).max() <= SLOPE
    assert np.abs(slopes(turned) + 2).max() <= SLOPE


@given(several, seeds)
def test_the_update_tends_to_the_sum_of_all_branches_at_one_direction(recipe: BlockRecipe, seed: int) -> None:
    """F(su) − su = Σ_i B_i(Norm(u)) + O(1/s): later branches are no longer affected by earlier ones."""
    block = recipe.build()
    u = directions(generator(seed), recipe.count, 8, recipe.d)
    gaps = [rms(torch.stack([out for _, out in block.outputs(s * u)]).sum(0) - block.limit(u)) for s in SCALES]
    assert np.abs(slopes(torch.stack(gaps)) + 1).max() <= SLOPE
