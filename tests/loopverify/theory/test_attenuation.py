"""Indirect signals against recurrences whose future losses are known in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.theory import future_signals, log_slope, measure_attenuation


def angle(H: Tensor) -> Tensor:
    """A loss that sees the direction only: the angle of a state of two channels."""
    return torch.atan2(H[..., 1], H[..., 0])


def shift(H: Tensor) -> Tensor:
    """A constant update across H = (s√2, 0): after t steps the angle is atan(t/(s√2))."""
    return H + torch.tensor([0.0, 1.0], dtype=H.dtype)


def test_signals_of_a_constant_update() -> None:
    # x = s√2: d atan(t/x)/d log x = −(t/x)/(1 + (t/x)²), and 0 for t = 0.
    H = torch.tensor([[10.0, 0.0], [100.0, 0.0]], dtype=torch.float64)
    signals = future_signals(shift, angle, H, 3)
    assert signals.shape == (4, 2)
    expected = [[-(t / x) / (1 + (t / x) ** 2) for x in (10.0, 100.0)] for t in range(4)]
    for found, values in zip(signals.tolist(), expected, strict=True):
        assert found == pytest.approx(values, rel=1e-13, abs=1e-18)


def test_constant_order_and_prediction() -> None:
    found = measure_attenuation(shift, angle, torch.tensor([1.0, 0.0], dtype=torch.float64), (1e3, 1e4, 1e5), 2)
    assert found.signals.shape == (3, 2)
    assert found.orders.tolist() == pytest.approx([-1.0, -1.0], abs=1e-5)
    # |signal| = (t/s)/√2 up to (t/x)²: C = 1/√2, at any horizon.
    assert found.constant == pytest.approx(1 / math.sqrt(2), rel=1e-6)
    assert found.predict(4, 200.0) == pytest.approx(4 / 200 / math.sqrt(2), rel=1e-6)
    assert found.direct.tolist() == [0.0, 0.0, 0.0]
    assert found.scales == (1e3, 1e4, 1e5)


def test_a_signal_through_another_token_counts() -> None:
    """Tokens mix: after a step, token 1's loss is twice the first channel that token 0 had, and token 0's loss is 0."""
    H = torch.tensor([[3.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    step = lambda x: torch.stack([0 * x[0], 2 * x[0]])  # noqa: E731
    signals = future_signals(step, lambda x: x[..., 0], H, 1)
    assert signals[0].tolist() == [3.0, 1.0]
    assert signals[1].tolist() == [6.0, 0.0]


def test_no_gradient_is_left_behind_and_no_grad_is_overridden() -> None:
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    H = torch.ones(2, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        signals = future_signals(lambda x: weight * x, lambda x: x.sum(-1), H, 2)
    assert signals.tolist() == [2.0, 4.0, 8.0]
    assert weight.grad is None
    assert H.grad is None
    assert not signals.requires_grad


def test_log_slope() -> None:
    x = (1.0, 10.0, 100.0, 1000.0)
    assert log_slope(x, torch.tensor([5 * v**-2 for v in x], dtype=torch.float64)).item() == pytest.approx(
        -2, rel=1e-14
    )
    assert log_slope(x, torch.tensor([1.0, 0.0, 1.0, 1.0])).isnan()


def test_messages() -> None:
    H = torch.ones(2)
    with pytest.raises(InputError, match=r"horizon is -1; expected a number of loops >= 0"):
        future_signals(shift, angle, H, -1)
    with pytest.raises(InputError, match=r"horizon is 0; expected a number of loops >= 1"):
        measure_attenuation(shift, angle, H, (1.0, 2.0), 0)
    for scales in [(1.0,), (2.0, 1.0), (0.0, 1.0), (1.0, 1.0)]:
        with pytest.raises(InputError, match=r"scales are .*; expected at least two, positive and increasing"):
            measure_attenuation(shift, angle, H, scales, 1)
