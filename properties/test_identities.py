"""The identities themselves, to 30 digits inside mpmath: only the random numbers at their start are tensors.

Derivatives are numerical, at raised precision, so that no closed form is judged by itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf
from torch import Tensor

from loopverify.theory import (
    ClampedL2,
    LayerNorm,
    Raw,
    RMSNorm,
    TokenReadout,
    direction_bounds,
    oracle,
    scale_enclosure,
)
from properties.blocks import directions, generator, normal
from properties.exact import Vector, logits_in_mpmath, mlp_in_mpmath, numbers, tiny_cases
from properties.heads import CaseRecipe
from properties.strategies import scales, seeds, small_tokens

AGREE = 1e-12
# Of 50 digits, numerical differentiation and cancellation may lose 20.
IDENTITY = mpf("1e-30")


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
        # All terms are of order one, except for ties in LayerNorm; a second derivative loses more digits than a first.
        assert abs(found - mp.diff(divergence, 0, 2)) <= mpf("1e-20") * (1 + found)


@given(small_tokens(count=2), scales)
def test_the_remainders_lie_in_their_enclosures_without_any_slack(vectors: list[Tensor], scale: float) -> None:
    """The bounds of MATHS, in arithmetic of 50 digits, with a tolerance of only 1e-45."""
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


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("sublayers", [1, 2, 4])
def test_the_orders_are_exact_in_the_limit(sublayers: int, eps: float) -> None:
    """Between s = 1e8 and 1e9, where float64 has no resolution left, the slopes are −1 and −2 to seven digits."""
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
