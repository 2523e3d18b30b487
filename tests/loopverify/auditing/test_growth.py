"""Which law a sequence of scales follows."""

from __future__ import annotations

import math

import numpy as np
import pytest

import loopverify as lv
from loopverify.auditing.growth import fit_growth, mean_scales
from loopverify.errors import InputError
from tests.loopverify.closed_form import TOKENS, looped, radial_step

K = range(1, 17)
LAWS = {
    "constant": ([3.0 for _ in K], (3.0,)),
    "linear": ([0.5 + 2.0 * k for k in K], (0.5, 2.0)),
    "sqrt": ([1.0 + 4.0 * math.sqrt(k) for k in K], (1.0, 4.0)),
    "exponential": ([0.28 * 2.0**k for k in K], (0.28, math.log(2))),
}


@pytest.mark.parametrize("law", LAWS)
def test_exact_sequences_are_recognized_with_their_coefficients(law: str) -> None:
    scales, coefficients = LAWS[law]
    fit = fit_growth(scales)
    assert fit.law == law
    assert fit.coefficients == pytest.approx(coefficients, rel=1e-6)
    assert fit.error < 1e-9
    assert fit.runner_up != law
    assert fit.runner_up_error >= fit.error
    assert set(fit.errors) == set(LAWS)
    assert fit.loops == 16


@pytest.mark.parametrize("law", ["linear", "sqrt", "exponential"])
@pytest.mark.parametrize("seed", range(5))
def test_two_percent_of_noise_does_not_hide_the_law(law: str, seed: int) -> None:
    noise = 1 + 0.02 * np.random.default_rng(seed).standard_normal(16)
    assert fit_growth(np.array(LAWS[law][0]) * noise).law == law


def test_one_percent_of_wobble_is_constant() -> None:
    wobble = [1 + 0.009 * (-1) ** k for k in K]
    assert fit_growth(wobble).law == "constant"
    # A steady leak of 1 % a loop is not: after 16 loops it is 17 %.
    assert fit_growth([1.01**k for k in K]).law != "constant"


def test_errors_are_relative_and_rms() -> None:
    # The best constant for 1 and 3 alternating minimizes (c − 1)² + (c/3 − 1)²: c = (1 + 1/3)/(1 + 1/9) = 1.2.
    fit = fit_growth([1.0, 3.0] * 4)
    assert fit.errors["constant"] == pytest.approx(math.sqrt((0.2**2 + 0.6**2) / 2))


def test_a_doubling_loop_is_exponential_and_a_push_linear() -> None:
    doubling = lv.unroll(looped(radial_step(2.0, 0.1), start=0.28), TOKENS, loops=16)
    assert fit_growth(mean_scales(doubling)[1:]).law == "exponential"
    push = lv.unroll(looped(radial_step(1.0, 0.3), start=0.28), TOKENS, loops=16)
    fit = fit_growth(mean_scales(push)[1:])
    assert (fit.law, fit.coefficients) == ("linear", pytest.approx((0.28, 0.3)))


def test_mean_scales_start_with_the_embedding() -> None:
    trace = lv.unroll(looped(radial_step(1.0, 0.5), start=2.0), TOKENS, loops=3)
    assert mean_scales(trace) == pytest.approx((2.0, 2.5, 3.0, 3.5))


def test_huge_and_decaying_sequences() -> None:
    assert fit_growth([1e30 * 2.0**k for k in K]).law == "exponential"
    fit = fit_growth([5.0 * 0.9**k for k in K])
    assert (fit.law, fit.coefficients[1]) == ("exponential", pytest.approx(math.log(0.9)))


@pytest.mark.parametrize("scales", [[1.0, 2.0, 3.0], [1.0, 2.0, math.inf, 4.0], [1.0, 0.0, 1.0, 1.0]])
def test_scales_without_a_law_are_an_error(scales: list[float]) -> None:
    with pytest.raises(InputError, match="expected at least four, finite and positive"):
        fit_growth(scales)
