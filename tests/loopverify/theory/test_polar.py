"""Polar form: units, decided edges, messages. Expected numbers are worked out by hand."""

from __future__ import annotations

import pytest
import torch

from loopverify.errors import InputError
from loopverify.theory import polar

F64 = torch.float64


def test_units_are_rms_on_vectors_where_the_three_conventions_differ() -> None:
    # Sixteen ones: rms 1, Euclidean norm 4 = √d. An update of 0.5 along it: a_rad = 0.5, while d·a_rad = 8.
    ones = torch.ones(16, dtype=F64)
    assert polar.scale(ones) == 1.0
    assert torch.equal(polar.direction(ones), ones)
    assert polar.inner(ones, ones) == 1.0
    a_rad, b_perp = polar.radial_turning(ones, 0.5 * ones)
    assert a_rad == 0.5
    assert torch.equal(b_perp, torch.zeros(16, dtype=F64))


def test_a_right_triangle() -> None:
    # H = (3, 4): ||H||_2 = 5, s = 5/√2, u = √2·(0.6, 0.8). b = (4, −3) is perpendicular to it, b = (6, 8) along it.
    split = polar.split(torch.tensor([3.0, 4.0], dtype=F64))
    assert split.scale.item() == pytest.approx(5 / 2**0.5, rel=1e-15)
    assert split.direction.tolist() == pytest.approx([0.6 * 2**0.5, 0.8 * 2**0.5], rel=1e-15)
    assert split.state.tolist() == pytest.approx([3.0, 4.0], rel=1e-15)
    a_rad, b_perp = polar.radial_turning(split.direction, torch.tensor([[4.0, -3.0], [6.0, 8.0]], dtype=F64))
    assert a_rad.tolist() == pytest.approx([0.0, 10 / 2**0.5], rel=1e-15, abs=1e-15)
    assert b_perp[0].tolist() == pytest.approx([4.0, -3.0], abs=1e-15)
    assert b_perp[1].tolist() == pytest.approx([0.0, 0.0], abs=4e-15)


def test_every_leading_dimension_is_a_batch() -> None:
    H = torch.randn(2, 3, 5, 7, dtype=F64)
    split = polar.split(H)
    assert split.scale.shape == (2, 3, 5)
    assert split.direction.shape == H.shape
    assert polar.scale(H[1, 2, 3]) == split.scale[1, 2, 3]
    assert split.direction.square().mean(-1) == pytest.approx(1, rel=1e-14)


def test_a_zero_token_has_scale_zero_direction_zero_and_no_gradient() -> None:
    H = torch.tensor([[0.0, 0.0], [1.0, -1.0]], dtype=F64, requires_grad=True)
    split = polar.split(H)
    assert split.scale.tolist() == [0.0, 1.0]
    assert split.direction.tolist() == [[0.0, 0.0], [1.0, -1.0]]
    assert torch.equal(split.state, H)
    (grad,) = torch.autograd.grad(split.scale.sum() + split.direction.sum(), H)
    # ∂s/∂H = u/d for the other token; its direction does not move for sum(u), which is constant around (1, −1).
    assert grad[0].tolist() == [0.0, 0.0]
    assert grad[1].tolist() == pytest.approx([0.5 + 1.0, -0.5 + 1.0], rel=1e-14)


def test_along_a_zero_direction_everything_is_turning() -> None:
    a_rad, b_perp = polar.radial_turning(torch.zeros(3, dtype=F64), torch.tensor([1.0, 2.0, 3.0], dtype=F64))
    assert a_rad == 0.0
    assert b_perp.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("size", [1e300, 1e-300, 5e-324, 1.0])
def test_no_overflow_and_no_underflow(size: float) -> None:
    split = polar.split(torch.tensor([size, -size, size, size], dtype=F64))
    assert split.scale.item() == size
    assert split.direction.tolist() == [1.0, -1.0, 1.0, 1.0]


def test_what_is_not_finite_stays_visible() -> None:
    H = torch.tensor([[torch.inf, 1.0], [torch.nan, 1.0], [1.0, 1.0]], dtype=F64)
    split = polar.split(H)
    assert split.scale[0] == torch.inf
    assert split.scale[1].isnan()
    assert split.scale[2] == 1.0
    assert split.direction[:2].isnan().any(-1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_are_measured_in_float32(dtype: torch.dtype) -> None:
    # 300² · 4096 overflows float16, and a bfloat16 sum of 4096 terms stops growing after 256 of them.
    H = torch.full((4096,), 300.0).to(dtype)
    split = polar.split(H)
    assert split.scale.dtype == torch.float32
    assert split.scale.item() == 300.0
    assert polar.inner(H, H).item() == pytest.approx(90_000.0, rel=1e-6)


def test_derivatives_are_right() -> None:
    H = torch.randn(4, 5, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(polar.scale, H)
    assert torch.autograd.gradcheck(polar.direction, H)
    assert torch.autograd.gradgradcheck(polar.direction, H)


def test_messages_say_what_was_given_and_what_was_expected() -> None:
    with pytest.raises(InputError, match=r"H is torch.int64 \(2,\); expected a floating tensor \(..., D\)"):
        polar.scale(torch.tensor([1, 2]))
    with pytest.raises(InputError, match=r"H is torch.float32 \(\); .* channels last"):
        polar.split(torch.tensor(1.0))
    with pytest.raises(InputError, match=r"H is torch.float32 \(3, 0\)"):
        polar.direction(torch.zeros(3, 0))
    with pytest.raises(InputError, match=r"H is a list; expected a floating tensor"):
        polar.scale([1.0])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"inner product of \(3,\) with \(4,\); expected the same channels"):
        polar.radial_turning(torch.zeros(3), torch.zeros(4))
