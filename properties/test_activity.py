"""Lemma 2 on random blocks: remainders lie in their enclosures, enclosures are reached, ledgers add up, and the carry
of a recurrence is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from loopverify.models import LoopedTransformer, TransformerConfig
from loopverify.theory import (
    carry,
    direction_bounds,
    epsilon_shift,
    ledger_of_branches,
    ledger_of_states,
    radial_turning,
    scale_enclosure,
)
from loopverify.theory.enclosures import rounding
from loopverify.theory.ledger import Ledger
from properties.blocks import BlockRecipe, directions, generator
from properties.strategies import Situation, blocks, scales, seeds, situations, small_tokens


def rms(x: Tensor) -> Tensor:
    return x.square().mean(-1).sqrt()


def assert_enclosed(s: Tensor, u: Tensor, b: Tensor, F: Tensor) -> None:
    """Scale and direction of F = su + b, measured on F itself, against the bounds from s, u and b."""
    a, b_perp = radial_turning(u, b)
    y, size = rms(b_perp), rms(b)
    # The bounds hold in real arithmetic. Each rms has a relative error of `rounding`; F was rounded at the size of its
    # parts, which is larger than F where b cancels su. Measured: rounding uses up to a third of what is allowed.
    slack = rounding(F.dtype, F.shape[-1])
    low, high = scale_enclosure(s, a, y)
    allowed = slack * (s + size)
    assert (rms(F) >= low - allowed).all()
    assert (rms(F) <= high + allowed).all()

    bounds = direction_bounds(s, a, y)
    D = F / rms(F)[..., None] - u - b_perp / s[..., None]
    radial, turning = radial_turning(u, D)
    # Divided by rms(F), an error of slack·(s + size) in F; b_perp/s brings an error of its own.
    allowed = slack * ((s + size) / rms(F) + 1 + size / s)
    assert (radial <= allowed).all()
    assert (radial >= bounds.radial_low - allowed).all()
    assert (rms(turning) <= bounds.turning + allowed).all()
    assert (rms(D) <= bounds.total + 2 * allowed).all()


@given(situations())
def test_remainders_lie_in_their_enclosures(situation: Situation) -> None:
    block, s, u = situation.build()
    H = s[..., None] * u
    assert_enclosed(s, u, torch.stack([out for _, out in block.outputs(H)]).sum(0), block.step(H))


@given(small_tokens(count=2), scales)
def test_remainders_lie_in_their_enclosures_at_edges(vectors: list[Tensor], scale: float) -> None:
    """For any update: zero, along the state, against it, or turning it around."""
    u = vectors[0] / rms(vectors[0])
    s = torch.tensor(scale, dtype=torch.float64)
    F = s * u + vectors[1]
    if float(rms(F)) > 1e-9 * float(s + rms(vectors[1])):  # a state that vanishes has no direction to bound
        assert_enclosed(s, u, vectors[1], F)


def plane(s: float, a: float, y: float) -> tuple[Tensor, Tensor, Tensor]:
    """u, b = a·u + b_perp with rms(b_perp) = y, and su + b, in two channels (rms 1 is a length of √2 there)."""
    u = torch.tensor([1.0, 1.0], dtype=torch.float64)
    across = torch.tensor([1.0, -1.0], dtype=torch.float64)
    b = a * u + y * across
    return u, b, s * u + b


@pytest.mark.parametrize("s", [1.0, 1e3])
def test_the_enclosures_are_reached(s: float) -> None:
    """Each bound is reached to 99 % or more in a known limit: a wider bound would be a weaker lemma."""
    u, b, F = plane(s, 0.0, 0.1 * s)  # turning small against s + a: ρ and the radial part of D
    a, b_perp = radial_turning(u, b)
    s_, y = torch.tensor(s, dtype=torch.float64), rms(b_perp)
    low, high = scale_enclosure(s_, a, y)
    assert float((rms(F) - low) / (high - low)) >= 0.99
    radial, _ = radial_turning(u, F / rms(F) - u - b_perp / s)
    assert float(radial / direction_bounds(s_, a, y).radial_low) >= 0.99

    u, b, F = plane(s, -0.5 * s, 0.005 * s)  # an update straight back, with little turning: the turning part of D
    a, b_perp = radial_turning(u, b)
    bounds = direction_bounds(s_, a, rms(b_perp))
    D = F / rms(F) - u - b_perp / s
    _, turning = radial_turning(u, D)
    assert float(rms(turning) / bounds.turning) >= 0.99
    assert float(rms(D) / bounds.total) >= 0.99


@given(situations(), st.integers(1, 5))
def test_the_ledger_of_loops_adds_up(situation: Situation, loops: int) -> None:
    block, s, u = situation.build()
    states = [s[..., None] * u]
    for _ in range(loops):
        states.append(block.step(states[-1]))
    assert_adds_up(ledger_of_states(states))


@given(situations(), st.integers(1, 3))
def test_the_ledger_of_sublayers_adds_up_to_that_of_loops(situation: Situation, loops: int) -> None:
    block, s, u = situation.build()
    H = state = s[..., None] * u
    outputs = []
    for _ in range(loops):
        outputs += block.outputs(state)
        state = block.step(state)
    ledger = ledger_of_branches(H, outputs)
    assert_adds_up(ledger)
    shares = ledger.attribution()
    assert list(shares) == [name for name, _ in block.branches]
    total = torch.stack(list(shares.values())).sum(0)
    assert (total - (rms(state) - s)).abs().max() <= 1e-12 * float(sizes(ledger))


def sizes(ledger: Ledger) -> Tensor:
    """The magnitude of everything that enters a ledger: each term has an error of a few ulps of its own size."""
    return ledger.scales.amax() + (ledger.radial.abs() + ledger.turning).sum(0).amax()


def assert_adds_up(ledger: Ledger) -> None:
    assert (ledger.growth - ledger.accounted).abs().max() <= 1e-12 * float(sizes(ledger))
    assert (ledger.remainder >= 0).all()
    # The remainder is evaluated from a and b_perp, without a difference of scales: no more than a few ulps of its own.
    # Where the update turns the state around, ρ = rms(F) − (s + a) is 2|s + a| and more; the bound includes it.
    assert (ledger.remainder <= ledger.remainder_bound * (1 + 1e-12) + 1e-15 * float(sizes(ledger))).all()


@given(blocks(), seeds, st.floats(0.05, 0.95) | st.floats(1.05, 3))
def test_carry_names_the_factor_of_a_recurrence(recipe: BlockRecipe, seed: int, decay: float) -> None:
    block = recipe.build()
    H = directions(generator(seed), recipe.count, 3, recipe.d)
    residual = carry(block.step, H)
    assert residual.kind == "carried"
    # c is a slope between α = 1e4 and 1e5, where rms(F) = α + a + ρ and ρ <= rms(b)²/α: off by 1e-9·rms(b)². Several
    # branches change each other by their size times their steepness over α, a few more powers of ten.
    update = float(rms(block.limit(H)).max())
    assert (residual.factors - 1).abs().max() <= 1e-7 * (1 + update) ** 2

    linear = carry(lambda x: decay * x + block.step(x) - x, H)
    assert linear.factor == pytest.approx(decay, rel=0.02, abs=0)
    assert linear.kind == ("amplified" if decay > 1 else "damped")
    assert carry(lambda x: x + block.step(x), H).kind == "amplified"
    assert carry(lambda x: x + block.step(x), H).factor == pytest.approx(2, rel=0.01, abs=0)
    assert carry(lambda x: block.norm(block.step(x)), H).kind == "removed"


@given(seeds, st.sampled_from([2, 4, 8, 16]), scales, st.sampled_from([1e-6, 1e-5]))
def test_an_epsilon_in_the_norm_costs_what_the_bound_says(seed: int, d: int, scale: float, eps: float) -> None:
    """rms(F_ε(su) − F(su)) <= Lip(B)·ε/(2s²) for one branch W₂ tanh(W₁ x), where Lip(B) <= ||W₂||·||W₁||."""
    exact = BlockRecipe(seed=seed, d=d)
    H = scale * directions(generator(seed + 1), exact.count, 3, d)
    (_, ideal), (_, practical) = (block.outputs(H)[0] for block in (exact.build(), replace(exact, eps=eps).build()))
    W1, W2 = exact.build().weights
    steepness = (torch.linalg.matrix_norm(W1, 2) * torch.linalg.matrix_norm(W2, 2))[:, None]
    shift = epsilon_shift(torch.tensor(scale, dtype=torch.float64), eps)
    # Rounding: either output is known to about 1e-14 of the steepness.
    assert (rms(practical - ideal) <= steepness * (shift + 1e-14)).all()
    assert shift <= eps / (2 * scale**2) * (1 + 1e-12)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("amplify", [1.0, 1e2, 1e5])
def test_the_reference_model_keeps_the_lemma(layers: int, amplify: float) -> None:
    """A model that these tests did not build: the decoder of loopverify.models, in float64."""
    config = TransformerConfig(vocab_size=11, d_model=16, layers=layers, heads=2, d_ff=24, init_std=0.3)
    model = LoopedTransformer(config).double().eval()
    tokens = torch.arange(12).view(2, 6) % 11
    with torch.no_grad():
        H, context = model.embed(tokens)
        H = amplify * H
        states = [H]
        for loop in range(1, 5):
            states.append(model.step(states[-1], context, loop))
        branches = model.branches(H, context, 1)
        assert_adds_up(ledger_of_states(states))
        assert_adds_up(ledger_of_branches(H, branches))
        update = torch.stack([out for _, out in branches]).sum(0)
        assert_enclosed(rms(H), H / rms(H)[..., None], update, states[1])
        assert carry(lambda x: model.step(x, context, 1), H).kind == "carried"
