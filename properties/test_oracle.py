"""The tensors' float64 against mpmath at 50 digits, and the identities themselves to 30 digits inside mpmath.

The oracle differentiates numerically at raised precision, so that no closed form is judged by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf
from torch import Tensor

from loopverify.theory import (
    ClampedL2,
    DynamicTanh,
    LayerNorm,
    Raw,
    RMSNorm,
    Tapered,
    TokenReadout,
    carry,
    direction_bounds,
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
    scale_enclosure,
    split,
)
from properties.blocks import directions, generator, normal
from properties.heads import READOUTS, Case, CaseRecipe, gradient, magnitude
from properties.strategies import epsilons, scales, seeds, small_tokens, softcaps

# Relative to the sizes of the terms that a result is summed from: float64 keeps n·1.1e-16 of them, n < 1,000.
AGREE = 1e-12
# Of 50 digits, numerical differentiation and cancellation may use up 20.
IDENTITY = mpf("1e-30")

Vector = list[Any]


def numbers(x: Tensor | None) -> Any:
    return None if x is None else x.tolist()


def readout_in_mpmath(r: TokenReadout) -> Callable[[Vector], Vector]:
    """The same readout by the oracle's definition."""
    if isinstance(r, RMSNorm):
        return lambda H: oracle.rms_norm(H, numbers(r.gain), r.eps)
    if isinstance(r, LayerNorm):
        return lambda H: oracle.layer_norm(H, numbers(r.gain), numbers(r.bias), r.eps)
    if isinstance(r, ClampedL2):
        return lambda H: oracle.clamped_l2(H, r.eps)
    if isinstance(r, DynamicTanh):
        return lambda H: oracle.dynamic_tanh(H, r.alpha, numbers(r.gain))
    if isinstance(r, Tapered):
        return lambda H: oracle.tapered(H, r.gate, numbers(r.norm.gain), r.norm.eps, numbers(r.linear))
    assert isinstance(r, Raw)
    return oracle.vector


def logits_in_mpmath(c: Case) -> Callable[[Vector], Vector]:
    read, weight = readout_in_mpmath(c.head.readout), c.head.weight.tolist()
    if c.head.softcap is None:
        return lambda H: oracle.logits(weight, read(H))
    return lambda H: oracle.softcap(oracle.logits(weight, read(H)), c.head.softcap)


@st.composite
def tiny_cases(draw: st.DrawFn, softcap: st.SearchStrategy[float | None] = softcaps) -> CaseRecipe:
    """One token of two to five channels, as many words: enough to be generic, and quick at 50 digits."""
    return CaseRecipe(
        seed=draw(seeds),
        kind=draw(st.sampled_from(READOUTS)),
        d=draw(st.integers(2, 5)),
        s=draw(scales),
        eps=draw(epsilons),
        tokens=1,
        most_words=5,
        softcap=draw(softcap),
    )


@given(tiny_cases())
def test_signals_agree(recipe: CaseRecipe) -> None:
    c = recipe.build()
    H, y = c.H[0].tolist(), int(c.targets)
    logits_of = logits_in_mpmath(c)
    # A logit that is off by δ changes a probability by the share δ: terms count once more for each unit of |z|.
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


# The identities, to 30 digits


def visibility_in_mpmath(r: TokenReadout, H: Vector) -> Any:
    """The closed form of ν, or None where there is none."""
    mean = mp.fsum(oracle.vector(H)) / len(H)
    if isinstance(r, RMSNorm):
        return mpf(r.eps) / (oracle.inner(H, H) + mpf(r.eps))
    if isinstance(r, LayerNorm):
        variance = oracle.rms([h - mean for h in oracle.vector(H)]) ** 2
        return mpf(r.eps) / (variance + mpf(r.eps))
    if isinstance(r, ClampedL2):
        return mpf(mp.sqrt(len(H)) * oracle.rms(H) < mpf(r.eps))
    return mpf(1) if isinstance(r, Raw) else None


@given(tiny_cases(softcap=st.none()))
def test_the_radial_signal_is_visibility_times_sigma(recipe: CaseRecipe) -> None:
    c = recipe.build()
    H, y = c.H[0].tolist(), int(c.targets)
    logits_of, weight = logits_in_mpmath(c), c.head.weight.tolist()
    r = c.head.readout
    with oracle.precision():
        nu = visibility_in_mpmath(r, H)
        if nu is None:
            return
        z = logits_of(H)
        bias = numbers(r.bias) if isinstance(r, LayerNorm) else [0] * len(H)
        shown = [x - w for x, w in zip(z, oracle.logits(weight, bias), strict=True)]
        signal = oracle.radial_signal(lambda x: oracle.cross_entropy(logits_of(x), y), H)
        terms = 1 + max(abs(x) for x in z + shown)
        assert abs(signal - nu * oracle.sigma(shown, z, y)) <= IDENTITY * terms
        if isinstance(r, LayerNorm):
            mean = oracle.derivative_along(lambda x: oracle.cross_entropy(logits_of(x), y), H, [1] * len(H))
            assert abs(mean) <= IDENTITY * terms / oracle.rms(H)


@given(tiny_cases(softcap=st.none()), seeds)
def test_fisher_visibility_is_the_curvature_of_the_divergence(recipe: CaseRecipe, seed: int) -> None:
    """v'Gv against d²/dt² KL(p(H) || p(H + t·v)) at t = 0."""
    c = recipe.build()
    H, v = oracle.vector(c.H[0].tolist()), normal(generator(seed), c.H.shape[-1]).tolist()
    logits_of = logits_in_mpmath(c)
    v = [x * float(c.H.abs().max()) for x in v]
    with oracle.precision():
        p = oracle.softmax(logits_of(H))

        def divergence(t: Any) -> Any:
            q = oracle.softmax(logits_of([h + t * x for h, x in zip(H, oracle.vector(v), strict=True)]))
            return mp.fsum(a * mp.log(a / b) for a, b in zip(p, q, strict=True))

        found = oracle.fisher_visibility(logits_of, H, v)
        # Everything is of order one, LayerNorm ties apart; a second derivative costs more digits than a first.
        assert abs(found - mp.diff(divergence, 0, 2)) <= mpf("1e-20") * (1 + found)


@given(small_tokens(count=2), scales)
def test_the_remainders_lie_in_their_enclosures_without_any_slack(vectors: list[Tensor], scale: float) -> None:
    """The bounds of MATHS, in exact arithmetic as far as 50 digits go: nothing is allowed on top but 1e-45."""
    b = vectors[1].tolist()
    with oracle.precision():
        _, u = oracle.split(vectors[0].tolist())
        s, dust = mpf(scale), mpf("1e-45")
        a, b_perp = oracle.radial_turning(u, b)
        y, size, x = oracle.rms(b_perp), oracle.rms(b), mpf(scale) + a
        if x <= mpf("1e-9") * (s + size):
            return
        rho = oracle.scale_remainder(s, u, b)
        assert -dust * s <= rho <= y**2 / (2 * x) + dust * (s + size)
        assert abs(rho - y**2 / (mp.sqrt(x**2 + y**2) + x)) <= IDENTITY * (s + size)
        radial, turning = oracle.direction_remainder(s, u, b)
        assert -(y**2) / (2 * x**2) - dust * (1 + size / s) <= radial <= dust * (1 + size / s)
        if s > size * (1 + IDENTITY):
            assert turning <= size * y / (s * (s - size)) + dust * (1 + size / s)
    # And the tensors' bounds are these, up to the rounding of a, y and their difference.
    scalars = [torch.tensor(float(v), dtype=torch.float64) for v in (s, a, y)]
    low, high = scale_enclosure(*scalars)
    assert float(low) == pytest.approx(float(x), abs=AGREE * float(s + size))
    assert float(high) >= float(x + rho) - AGREE * float(s + size)
    assert float(direction_bounds(*scalars).radial_low) <= float(radial) + AGREE * (1 + float(size / x)) ** 2


Step = Callable[[Vector], Vector]


def mlp_in_mpmath(seed: int, d: int, sublayers: int, eps: float) -> tuple[Step, Step]:
    """A pre-norm MLP block at 50 digits, and its update at infinite scale."""
    rng = generator(seed)
    weights = [(normal(rng, d, d).tolist(), normal(rng, d, d).tolist()) for _ in range(sublayers)]

    def branch(W: tuple[Any, Any], x: Vector) -> Vector:
        return oracle.logits(W[1], [mp.tanh(v) for v in oracle.logits(W[0], x)])

    def add(x: Vector, y: Vector) -> Vector:
        return [p + q for p, q in zip(x, y, strict=True)]

    def step(H: Vector) -> Vector:
        for W in weights:
            H = add(H, branch(W, oracle.rms_norm(H, None, eps)))
        return H

    def limit(u: Vector) -> Vector:
        total = [mpf(0)] * len(u)
        for W in weights:
            total = add(total, branch(W, u))
        return total

    return step, limit


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("sublayers", [1, 2, 4])
def test_the_orders_are_exact_in_the_limit(sublayers: int, eps: float) -> None:
    """Between s = 1e8 and 1e9, where float64 sees nothing any more, the slopes are −1 and −2 to seven digits."""
    with oracle.precision():
        step, limit = mlp_in_mpmath(5, 3, sublayers, eps)
        _, u = oracle.split(directions(generator(6), 3).tolist())
        a, b_perp = oracle.radial_turning(u, limit(u))
        scale, turned = [], []
        for s in (mpf(10) ** 8, mpf(10) ** 9):
            after, direction = oracle.split(step([s * x for x in u]))
            scale.append(abs(after - s - a))
            turned.append(oracle.rms([x - y - z / s for x, y, z in zip(direction, u, b_perp, strict=True)]))
        assert float(mp.log10(scale[1] / scale[0])) == pytest.approx(-1, abs=1e-7)
        assert float(mp.log10(turned[1] / turned[0])) == pytest.approx(-2, abs=1e-7)


@pytest.mark.parametrize("horizon", [1, 2])
def test_the_future_signal_falls_as_one_over_the_scale_in_the_limit(horizon: int) -> None:
    with oracle.precision():
        step, _ = mlp_in_mpmath(7, 3, 1, 0.0)
        weight = normal(generator(8), 4, 3).tolist()

        def loss(H: Vector) -> Any:
            return oracle.cross_entropy(oracle.logits(weight, oracle.rms_norm(H)), 1)

        _, u = oracle.split(directions(generator(9), 3).tolist())
        signals = [oracle.future_signal(step, loss, [mpf(10) ** k * x for x in u], horizon) for k in (8, 9)]
        assert float(mp.log10(abs(signals[1] / signals[0]))) == pytest.approx(-1, abs=1e-7)


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
    # Terms: logits of order |readout|·√3, through two steps that may turn a state of scale one about rather sharply.
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
