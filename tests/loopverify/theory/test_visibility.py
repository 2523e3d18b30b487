"""What a loss sees: signals, fractions, floors and Fisher visibilities, against closed forms and autograd."""

from __future__ import annotations

import math

import pytest
import torch

from loopverify.errors import InputError
from loopverify.theory import (
    Head,
    LayerNorm,
    Raw,
    RMSNorm,
    fisher_visibility,
    floor,
    fraction_along,
    mean_fraction,
    penalty_radial_signal,
    predicted_radial_signal,
    radial_fraction,
    radial_signal,
)
from loopverify.theory.visibility import sigma

F64 = torch.float64


def test_sigma_by_hand() -> None:
    # Two words with logits (log 3, 0): p = (3/4, 1/4), E_p[z] = 3/4 log 3.
    z = torch.tensor([math.log(3), 0.0], dtype=F64)
    assert sigma(z, z, torch.tensor(0)).item() == pytest.approx(-math.log(3) / 4, rel=1e-15)
    assert sigma(z, z, torch.tensor(1)).item() == pytest.approx(3 * math.log(3) / 4, rel=1e-15)
    # Logits that all move alike move no loss.
    assert sigma(torch.ones_like(z), z, torch.tensor(0)).item() == pytest.approx(0, abs=1e-15)


def test_the_predicted_signal_by_hand() -> None:
    # W = identity, H = (log 3, 0): a raw readout has the signal σ, an RMSNorm ε/(s² + ε) of the σ of its own logits.
    H = torch.tensor([math.log(3), 0.0], dtype=F64)
    W = torch.eye(2, dtype=F64)
    y = torch.tensor(1)
    raw = predicted_radial_signal(Head(readout=Raw(), weight=W), H, y).item()
    assert raw == pytest.approx(3 * math.log(3) / 4, rel=1e-15)
    s2 = math.log(3) ** 2 / 2
    z = math.log(3) / math.sqrt(s2 + s2)  # ε = s² halves the square
    p = math.exp(z) / (math.exp(z) + 1)
    normed = predicted_radial_signal(Head(readout=RMSNorm(eps=s2), weight=W), H, y).item()
    assert normed == pytest.approx(0.5 * p * z, rel=1e-14)


def test_signals_are_plain_inner_products_in_float64() -> None:
    grad, H = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, -1.0])
    assert radial_signal(grad, H).item() == 11.0  # not divided by d
    assert radial_signal(grad, H).dtype == F64
    # 1 + 2⁻³⁰ is lost in float32, and with it the difference to 1.
    assert radial_signal(torch.tensor([1.0, 2.0**-30]), torch.ones(2)).item() == 1 + 2.0**-30


def test_fractions_by_hand() -> None:
    H = torch.tensor([3.0, 4.0])
    assert radial_fraction(torch.tensor([[6.0, 8.0], [4.0, -3.0], [-1.0, 0.0]]), H.expand(3, 2)).tolist() == (
        pytest.approx([1.0, 0.0, 0.6], abs=1e-15)
    )
    assert mean_fraction(torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, 0.0]])).tolist() == (
        pytest.approx([1.0, 0.0, 0.5**0.5], abs=1e-15)
    )
    assert fraction_along(H, H).item() <= 1.0  # never above, whatever the rounding


def test_a_gradient_of_any_size_has_a_fraction() -> None:
    for size in (1e-300, 1e300):
        assert radial_fraction(torch.full((4,), size, dtype=F64), torch.ones(4, dtype=F64)).item() == (
            pytest.approx(1.0, rel=1e-15)
        )
    tiny = torch.full((4,), 1e-45)  # subnormal in float32
    assert radial_fraction(tiny, torch.ones(4)).item() == pytest.approx(1.0, rel=1e-15)


def test_no_gradient_is_not_a_blind_gradient() -> None:
    """A dead loss must not read as a perfect blind spot."""
    grad = torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    found = radial_fraction(grad, torch.ones(2, 2))
    assert found[0].isnan()
    assert found[1] == 0.0
    assert found.nanmean() == 0.0
    assert radial_fraction(torch.ones(2), torch.zeros(2)).isnan()


def test_layernorm_hides_the_mean_and_not_a_single_channel() -> None:
    H = torch.randn(6, 5, dtype=F64, requires_grad=True)
    head = Head(readout=LayerNorm(eps=0.1), weight=torch.randn(7, 5, dtype=F64))
    loss = torch.nn.functional.cross_entropy(head(H), torch.arange(6))
    (grad,) = torch.autograd.grad(loss, H)
    assert mean_fraction(grad).max() <= 1e-14
    assert fraction_along(grad, torch.eye(5, dtype=F64)[0].expand_as(grad)).max() >= 0.1


def test_the_floor_follows_eps_and_width() -> None:
    assert floor(torch.float64, 64) == 2 * 2.0**-52 / 8
    assert floor(torch.float32, 64) == 2 * 2.0**-23 / 8
    assert floor(torch.bfloat16, 16) == 2 * 2.0**-7 / 4
    assert floor(torch.float16, 1) == 2 * 2.0**-10


def test_the_floor_explains_what_the_paper_measured() -> None:
    """Table 3 of Sharma & Vu 2026: 5.0e-9 and 4.7e-9 in float32 behind RMSNorm at d = 512; raw exits show 6e-2."""
    assert floor(torch.float32, 512) / 4 <= 4.7e-9 <= 5.0e-9 <= floor(torch.float32, 512)
    assert floor(torch.float32, 512) < 1e-6 * 6.3e-2


def test_fisher_visibility_by_hand() -> None:
    # Two words, W = identity: Var_p of the rates (v₁, v₂) is p₁ p₂ (v₁ − v₂)².
    head = Head(readout=Raw(), weight=torch.eye(2, dtype=F64))
    H = torch.tensor([math.log(3), 0.0], dtype=F64)
    assert fisher_visibility(head, H, torch.tensor([2.0, -1.0])).item() == pytest.approx(3 / 16 * 9, rel=1e-14)
    assert fisher_visibility(head, H, torch.ones(2)).item() == pytest.approx(0, abs=1e-30)


def test_fisher_visibility_takes_any_logits() -> None:
    """A module with a fused norm, under no_grad, without touching parameters or states."""
    readout = torch.nn.Sequential(torch.nn.RMSNorm(6, eps=0.0), torch.nn.Linear(6, 9, bias=False)).double()
    H = torch.randn(2, 3, 6, dtype=F64, requires_grad=True)
    with torch.no_grad():
        found = fisher_visibility(readout, H, H)
        other = fisher_visibility(readout, H, torch.ones_like(H))
    assert found.shape == (2, 3)
    assert found.max() <= 1e-28
    assert other.min() >= 1e-3
    assert not found.requires_grad
    assert H.grad is None
    assert all(p.grad is None for p in readout.parameters())


def test_fisher_visibility_in_the_large_matrix_form() -> None:
    H = torch.randn(5, dtype=F64)
    v = torch.randn(5, dtype=F64)
    head = Head(readout=RMSNorm(eps=0.3), weight=torch.randn(4, 5, dtype=F64))
    J = torch.autograd.functional.jacobian(head, H)
    p = torch.softmax(head(H), -1)
    G = J.T @ (torch.diag(p) - torch.outer(p, p)) @ J
    assert fisher_visibility(head, H, v).item() == pytest.approx((v @ G @ v).item(), rel=1e-12)


def test_the_penalty_by_hand() -> None:
    # λ = 0.01, K = 4 loops, 10 tokens, s = 3: 2·0.01·9/40.
    pull = penalty_radial_signal(torch.tensor([3.0, 0.0], dtype=F64), weight=0.01, loops=4, tokens=10)
    assert pull.tolist() == pytest.approx([0.0045, 0.0], rel=1e-14)


def test_messages() -> None:
    with pytest.raises(InputError, match=r"a gradient \(2, 3\) along \(3,\); expected one gradient for each token"):
        radial_signal(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(InputError, match=r"grad is torch.int64"):
        radial_fraction(torch.zeros(3, dtype=torch.int64), torch.zeros(3))
    with pytest.raises(InputError, match=r"values \(2,\), logits \(2,\), targets \(1,\); expected"):
        sigma(torch.zeros(2), torch.zeros(2), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(InputError, match=r"floor of dtype torch.int64 and d = 4; expected a floating dtype"):
        floor(torch.int64, 4)
    with pytest.raises(InputError, match=r"d = 0; expected a floating dtype and d >= 1"):
        floor(torch.float32, 0)
    with pytest.raises(InputError, match=r"v has shape \(3,\), H \(2,\); expected the same"):
        fisher_visibility(lambda H: H, torch.zeros(2), torch.zeros(3))
    with pytest.raises(InputError, match=r"loops = 0 and tokens = 5; expected both >= 1"):
        penalty_radial_signal(torch.ones(1), weight=1.0, loops=0, tokens=5)
