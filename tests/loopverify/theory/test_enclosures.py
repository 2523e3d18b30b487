"""The bounds of Lemma 2 in numbers worked out by hand, and where they end."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.theory import direction_bounds, epsilon_shift, scale_enclosure
from loopverify.theory.enclosures import rounding


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_scale_of_a_right_triangle() -> None:
    # s + a = 4, rms(b_perp) = 3: rms(F) = 5, enclosed in [4, 4 + 9/8].
    low, high = scale_enclosure(f64(3.5), f64(0.5), f64(3.0))
    assert (low.item(), high.item()) == (4.0, 5.125)
    assert low.item() <= 5.0 <= high.item()


def test_the_enclosure_holds_beyond_the_lemma() -> None:
    # Turned around (s + a = −4): rms(F) = 5 still. Dwarfed (s + a = 0.1, y = 3): rms(F) = √9.01, below 0.1 + 3 and
    # far below 0.1 + 9/0.2. Stopped (s + a = 0): rms(F) = y. Stopped without turning: 0, not NaN.
    low, high = scale_enclosure(f64(1.0, 0.1, 1.0, 1.0), f64(-5.0, 0.0, -1.0, -1.0), f64(3.0, 3.0, 3.0, 0.0))
    assert low.tolist() == [4.0, 0.1, 0.0, 0.0]
    assert high.tolist() == [5.125, 3.1, 3.0, 0.0]


def test_the_direction_of_a_right_triangle() -> None:
    # s = 4, a = 0, y = 3, rms(F) = 5: u keeps 4/5 of itself (radial −1/5) and turns by 3/5 instead of 3/4 (−3/20).
    bounds = direction_bounds(f64(4.0), f64(0.0), f64(3.0))
    assert bounds.radial_low.item() == -9 / 32 <= -1 / 5
    assert bounds.turning.item() == 9 / 4 >= 3 / 20
    assert bounds.total.item() == pytest.approx(math.hypot(9 / 32, 9 / 4), rel=1e-15)


def test_direction_bounds_end_where_the_lemma_does() -> None:
    # No turning part; s <= rms(b); an update beyond −s; s = 0.
    bounds = direction_bounds(f64(1.0, 1.0, 1.0, 0.0), f64(0.5, 2.0, -3.0, 1.0), f64(0.0, 0.1, 0.0, 1.0))
    assert bounds.turning.tolist() == [0.0, math.inf, 0.0, math.inf]
    # A cosine minus one: 0 where nothing turns, −2 where all does, never below −1 while s + a > 0.
    assert bounds.radial_low[[0, 2]].tolist() == [0.0, -2.0]
    assert bounds.radial_low[3].item() == -0.5
    assert direction_bounds(f64(1.0), f64(-3.0), f64(0.1)).radial_low.item() == -2.0
    assert direction_bounds(f64(1.0), f64(0.0), f64(100.0)).radial_low.item() == -1.0


def test_bounds_are_elementwise_over_any_shape() -> None:
    s, a, y = torch.rand(3, 2, 5, dtype=torch.float64) + 1
    low, high = scale_enclosure(s, a, y)
    assert low.shape == high.shape == (2, 5)
    assert direction_bounds(s, a, y).total.shape == (2, 5)


def test_epsilon_shift_keeps_its_digits() -> None:
    # ε = 3s²: 1 − 1/√4. And ε/s² = 1e-18, where 1 − s/√(s² + ε) is 0 in float64: ε/(2s²) = 5e-19 to 18 digits.
    assert epsilon_shift(f64(2.0), 12.0).item() == pytest.approx(0.5, rel=1e-15)
    assert epsilon_shift(f64(1e6), 1e-6).item() == pytest.approx(5e-19, rel=1e-15, abs=0)
    assert epsilon_shift(f64(1.0), 0.0).item() == 0.0
    assert epsilon_shift(f64(0.0), 1e-6).item() == 1.0
    with pytest.raises(InputError, match=r"eps is -1.0; expected a number >= 0"):
        epsilon_shift(f64(1.0), -1.0)


def test_rounding_grows_with_width_and_eps() -> None:
    assert rounding(torch.float64, 8) == 8 * 2.0**-52
    assert rounding(torch.float32, 1024) == 516 * 2.0**-23
