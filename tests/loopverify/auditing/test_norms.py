"""Tokenwise norms against numpy, and their units."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loopverify.auditing.norms import token_norms
from loopverify.errors import InputError


@pytest.mark.parametrize("unit", ["l2", "rms"])
def test_agrees_with_numpy(unit: str) -> None:
    state = torch.randn(3, 37, 12, dtype=torch.float64)
    norms = np.linalg.norm(state.numpy().reshape(-1, 12), axis=1) / (np.sqrt(12) if unit == "rms" else 1)
    measured = token_norms(state, unit=unit)
    assert measured.tokens == 111
    assert measured.unit == unit
    for name, expected in [
        ("mean", norms.mean()),
        ("median", np.median(norms)),
        ("p99", np.quantile(norms, 0.99)),
        ("max", norms.max()),
        ("std", norms.std()),
    ]:
        assert getattr(measured, name) == pytest.approx(expected, rel=1e-13), name


def test_units_differ_by_the_root_of_the_channels() -> None:
    # Sixteen ones: ||x||_2 = 4 and rms(x) = 1.
    ones = torch.ones(1, 1, 16)
    assert token_norms(ones).mean == 4.0
    assert token_norms(ones, unit="rms").mean == 1.0


def test_one_token_is_its_own_summary() -> None:
    norms = token_norms(torch.tensor([[[3.0, 4.0]]]))
    assert (norms.mean, norms.median, norms.p99, norms.max, norms.std) == (5.0, 5.0, 5.0, 5.0, 0.0)


def test_half_precision_is_measured_in_float32() -> None:
    # In bfloat16 a sum of 4096 squares of 300 would be off in the third digit, in float16 it would overflow.
    for dtype in (torch.bfloat16, torch.float16):
        state = torch.full((1, 2, 4096), 300.0).to(dtype)
        assert token_norms(state).max == pytest.approx(float(state[0, 0, 0]) * 64, rel=1e-6)


def test_leaves_no_graph_and_changes_nothing() -> None:
    state = torch.randn(2, 3, 4, requires_grad=True)
    before = state.detach().clone()
    token_norms(state)
    assert torch.equal(state, before)
    assert state.grad is None


def test_an_invalid_state_or_unit_is_an_error() -> None:
    with pytest.raises(InputError, match=r"state is torch.int64 \(2, 3\); expected a non-empty floating tensor"):
        token_norms(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(InputError, match=r"\(0, 3\)"):
        token_norms(torch.zeros(0, 3))
    with pytest.raises(InputError, match=r"unknown unit 'L2'; expected one of: l2, rms"):
        token_norms(torch.zeros(1, 3), unit="L2")  # type: ignore[arg-type]
