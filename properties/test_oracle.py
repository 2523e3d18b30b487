"""float64 tensors compared with mpmath at 50 digits.

The oracle differentiates numerically at raised precision, so that no closed form is judged by itself.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf
from torch import Tensor

from loopverify.theory import (
    LayerNorm,
    carry,
    epsilon_shift,
    fisher_visibility,
    future_signals,
    ledger_of_branches,
    ledger_of_states,
    oracle,
    penalty_radial_signal,
    predicted_radial_signal,
    radial_signal,
    radial_turning,
    split,
)
from properties.blocks import directions, generator, normal
from properties.exact import logits_in_mpmath, mlp_in_mpmath, readout_in_mpmath, tiny_cases
from properties.heads import CaseRecipe, gradient, magnitude
from properties.strategies import epsilons, scales, seeds, small_tokens

# Relative to the sizes of the summed terms: the error of float64 is n·1.1e-16 of them, n < 1,000.
AGREE = 1e-12
# Of 50 digits, numerical differentiation and cancellation may lose 20.
IDENTITY = mpf("1e-30")


@given(tiny_cases())
def test_signals_agree(recipe: CaseRecipe) -> None:
    c = recipe.build()
    H, y = c.H[0].tolist(), int(c.targets)
    logits_of = logits_in_mpmath(c)
    # An error δ of a logit changes a probability by the fraction δ: terms are added once more for each unit of |z|.
    terms = float(magnitude(c)) * (1 + float(c.head(c.H).abs().max()))
    with oracle.precision():
        exact = float(oracle.radial_signal(lambda x: oracle.cross_entropy(logits_of(x), y), H))
        value = float(oracle.cross_entropy(logits_of(H), y))
    assert float(predicted_radial_signal(c.head, c.H, c.targets)) == pytest.approx(exact, abs=AGREE * terms)
    assert float(radial_signal(gradient(c), c.H)) == pytest.approx(exact, abs=AGREE * terms)
    assert float(c.loss(c.H)) == pytest.approx(value, abs=AGREE * terms)


@given(tiny_cases())
def test_readouts_and_their_rates_agree(recipe: CaseRecipe) -> None:
    c = recipe.build()
    H, read = c.H[0].tolist(), readout_in_mpmath(c.head.readout)
    r = c.head.readout
    largest = float(r(c.H).abs().max())
    with oracle.precision():
        value = [float(x) for x in read(H)]
        rates = [float(oracle.radial_signal(lambda x, i=i: read(x)[i], H)) for i in range(len(H))]
    assert r(c.H)[0].tolist() == pytest.approx(value, abs=AGREE * largest)
    # LayerNorm's centered channels cancel; two that nearly agree lose digits in proportion.
    centered = (c.H - c.H.mean(-1, keepdim=True)).abs().max()
    steep = float(c.H.abs().max() / centered.clamp_min(1e-300)) if isinstance(r, LayerNorm) else 1.0
    assert r.radial_rate(c.H)[0].tolist() == pytest.approx(rates, abs=AGREE * largest * max(1.0, steep))


@given(tiny_cases(), seeds)
def test_fisher_visibilities_agree(recipe: CaseRecipe, seed: int) -> None:
    c = recipe.build()
    v = float(c.H.abs().max()) * normal(generator(seed), 1, c.H.shape[-1])
    with oracle.precision():
        exact = float(oracle.fisher_visibility(logits_in_mpmath(c), c.H[0].tolist(), v[0].tolist()))
    found = float(fisher_visibility(c.head, c.H, v))
    # As roots, which are changes of logits; a LayerNorm near a tie of its channels is steep, hence the relative part.
    assert found**0.5 == pytest.approx(exact**0.5, rel=1e-9, abs=AGREE * float(magnitude(c)))


@given(small_tokens(count=2), scales)
def test_polar_form_enclosures_and_ledger_agree(vectors: list[Tensor], scale: float) -> None:
    H, b = scale * vectors[0], vectors[1]
    polar = split(H)
    a, b_perp = radial_turning(polar.direction, b)
    y, size = b_perp.square().mean().sqrt(), float(b.square().mean().sqrt())
    with oracle.precision():
        s, u = oracle.split(H.tolist())
        exact_a, exact_perp = oracle.radial_turning(u, b.tolist())
        exact_y = oracle.rms(exact_perp)
        moved = [h + x for h, x in zip(oracle.vector(H.tolist()), b.tolist(), strict=True)]
        in_range = s + exact_a > mpf("1e-3") * (s + size)
        rho = oracle.scale_remainder(s, u, b.tolist())
        growth = float(oracle.rms(moved) - s)
    assert float(polar.scale) == pytest.approx(float(s), rel=AGREE, abs=0)
    assert polar.direction.tolist() == pytest.approx([float(x) for x in u], abs=AGREE)
    assert float(a) == pytest.approx(float(exact_a), abs=AGREE * size)
    assert b_perp.tolist() == pytest.approx([float(x) for x in exact_perp], abs=AGREE * size * len(b))
    assert float(y) == pytest.approx(float(exact_y), abs=AGREE * size)
    ledger = ledger_of_branches(H, [("b", b)])
    assert float(ledger.growth) == pytest.approx(growth, abs=AGREE * (float(s) + size))
    if in_range:  # the state is not turned around, nor nearly stopped (x = s + a would have lost its digits)
        # ρ = y²/(rms(F) + x), of an x known to 1e3·AGREE; and the oracle itself leaves 1e-50 of s where there is no ρ.
        allowed = 1e3 * AGREE * size**2 / float(s + exact_a) + 1e-40 * float(s)
        assert float(ledger.remainder[0]) == pytest.approx(float(rho), abs=allowed)


@given(scales, epsilons, st.floats(1e-6, 10))
def test_epsilon_shift_and_penalty_agree(s: float, eps: float, weight: float) -> None:
    with oracle.precision():
        shift = float(oracle.epsilon_shift(s, eps))
        pull = float(oracle.radial_signal(lambda H: oracle.norm_penalty(H, weight, 4, 7), [s, -s, s]))
    scale = torch.tensor(s, dtype=torch.float64)
    assert float(epsilon_shift(scale, eps)) == pytest.approx(shift, rel=AGREE, abs=0)
    assert float(penalty_radial_signal(scale, weight=weight, loops=4, tokens=7)) == pytest.approx(
        pull, rel=AGREE, abs=0
    )


@given(seeds, st.floats(0, 3), st.integers(0, 2))
def test_carry_ratios_and_future_signals_agree(seed: int, exponent: float, horizon: int) -> None:
    """One block twice: as tensors, and at 50 digits with the same weights."""
    rng = generator(seed)
    W1, W2, readout = normal(rng, 3, 3), normal(rng, 3, 3), normal(rng, 4, 3)
    H = 10.0**exponent * directions(rng, 3)

    def step(x: Tensor) -> Tensor:
        return x + torch.tanh(torch.nn.functional.rms_norm(x, (3,), eps=1e-6) @ W1.T) @ W2.T

    def loss(x: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(torch.nn.functional.rms_norm(x, (3,), eps=0.0) @ readout.T, target)

    target = torch.tensor(1)
    with oracle.precision():
        exact, _ = mlp_in_mpmath(seed, 3, 1, 1e-6)  # draws W₁ and W₂ first, from the same seed
        ratios = [float(oracle.carry_ratio(exact, H.tolist(), alpha)) for alpha in (10, 1e3)]
        signal = float(
            oracle.future_signal(
                exact,
                lambda x: oracle.cross_entropy(oracle.logits(readout.tolist(), oracle.rms_norm(x)), 1),
                H.tolist(),
                horizon,
            )
        )
    assert carry(step, H, alphas=(10, 1e3)).ratios.tolist() == pytest.approx(ratios, rel=AGREE, abs=0)
    # Terms: logits of order |readout|·√3, through two steps that may rotate a state of scale one strongly.
    steep = (1 + float(W1.norm() * W2.norm())) ** horizon
    assert future_signals(step, loss, H, horizon)[-1].item() == pytest.approx(
        signal, abs=AGREE * steep * float(readout.abs().sum())
    )


@given(seeds, scales, st.integers(1, 3))
def test_the_ledger_of_a_trajectory_agrees(seed: int, scale: float, loops: int) -> None:
    with oracle.precision():
        step, _ = mlp_in_mpmath(seed, 3, 1, 1e-6)
        states = [[scale * x for x in directions(generator(seed + 1), 3).tolist()]]
        for _ in range(loops):
            states.append([float(x) for x in step(states[-1])])
        growth, radial, remainder = oracle.norm_ledger(states)
        assert abs(growth - sum(radial) - sum(remainder)) <= IDENTITY * max(oracle.rms(H) for H in states)
        size = float(max(oracle.rms(H) for H in states))
    ledger = ledger_of_states([torch.tensor(H, dtype=torch.float64) for H in states])
    assert ledger.growth.item() == pytest.approx(float(growth), abs=AGREE * size)
    assert ledger.radial.tolist() == pytest.approx([float(a) for a in radial], abs=AGREE * size)
    assert ledger.remainder.tolist() == pytest.approx([float(r) for r in remainder], abs=AGREE * size)
