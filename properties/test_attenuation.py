"""Future losses: behind a normalized readout, their dependence on the present scale decays as 1/s."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from loopverify.theory import future_signals, measure_attenuation
from properties.blocks import BlockRecipe, directions, generator, normal
from properties.strategies import blocks, seeds

SCALES = (1e2, 1e3, 1e4, 1e5)
HORIZON = 3
VOCAB = 7

# The fit starts at s = 1e2, where three loops of updates of rms one still move the state by a few percent; an excess e
# at one end of three decades moves the slope by 0.13·e. The token with the largest of 24 signals may change on the way.
SLOPE = 0.1

stable = blocks(d=st.sampled_from([8, 16, 32]), sublayers=st.integers(1, 3), size=st.sampled_from([0.3, 1.0]))


def losses(seed: int, recipe: BlockRecipe, normalized: bool) -> Callable[[Tensor], Tensor]:
    """Cross-entropy of each token (N, T, D) -> (N, T) behind an RMSNorm without epsilon, or a raw readout."""
    rng = generator(seed)
    weight = normal(rng, VOCAB, recipe.d) / recipe.d**0.5
    targets = torch.randint(VOCAB, (recipe.count, 3), generator=rng)

    def loss(H: Tensor) -> Tensor:
        shown = H / H.square().mean(-1, keepdim=True).sqrt() if normalized else H
        logits = (shown @ weight.mT).flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="none").view_as(targets)

    return loss


@given(stable, seeds)
def test_the_indirect_signal_fades_as_one_over_the_scale(recipe: BlockRecipe, seed: int) -> None:
    block = recipe.build()
    u = directions(generator(seed), recipe.count, 3, recipe.d)
    loss = losses(seed, recipe, normalized=True)
    found = measure_attenuation(block.step, loss, u, SCALES, HORIZON)
    assert (found.orders + 1).abs().max() <= SLOPE
    # Lemma 1 next to it: the direct signal is zero at every scale, to rounding of logits of order √d.
    assert found.direct.max() <= 1e-12

    # The constant of s <= 1e5 predicts the signals at 1e6. They tend to a limit in s·signal, from either side; a
    # fit up to 1e5 can be off by the remaining term of order 1/s.
    later = future_signals(block.step, loss, 1e6 * u, HORIZON).abs()
    for t in range(1, HORIZON + 1):
        assert float(later[t].max()) <= found.predict(t, 1e6) * 1.01


@given(stable, seeds)
def test_the_signal_is_the_derivative_of_the_future_loss(recipe: BlockRecipe, seed: int) -> None:
    """∂L_{k+t}/∂log s of one token by central differences of the loss, at a scale where it is not small yet."""
    block = recipe.build()
    H = 2 * directions(generator(seed), recipe.count, 3, recipe.d)
    loss = losses(seed, recipe, normalized=True)
    signals = future_signals(block.step, loss, H, 2)
    h = 1e-5

    def total(t: float) -> Tensor:
        state = H.clone()
        state[:, 0] *= np.exp(t)
        return loss(block.step(block.step(state))).sum(-1)

    # Error: h² times a third derivative, and rounding eps/h: 1e-10 each; a steep block adds some powers of ten.
    differences = (total(h) - total(-h)) / (2 * h)
    assert signals[2, :, 0].numpy() == pytest.approx(differences.numpy(), rel=1e-5, abs=1e-7)


@given(stable, seeds)
def test_a_raw_readout_keeps_its_sight_of_the_scale(recipe: BlockRecipe, seed: int) -> None:
    """Without the premise: raw future losses change with log s in proportion to s, after t loops as immediately."""
    block = recipe.build()
    u = directions(generator(seed), recipe.count, 3, recipe.d)
    found = measure_attenuation(block.step, losses(seed, recipe, normalized=False), u, SCALES, HORIZON)
    assert (found.orders - 1).abs().max() <= SLOPE
    assert (found.signals / found.direct[:, None] - 1).abs().max() <= 0.2
