"""Readouts against torch's own norms, and their visibility factors against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from loopverify.errors import InputError
from loopverify.theory import ClampedL2, DynamicTanh, Head, LayerNorm, Raw, RMSNorm, Tapered, TokenReadout

F64 = torch.float64
GAIN = torch.tensor([0.5, -1.0, 2.0, 1.5], dtype=F64)
BIAS = torch.tensor([1.0, 0.0, -2.0, 0.25], dtype=F64)


def states() -> torch.Tensor:
    return torch.randn(3, 5, 4, dtype=F64)


def test_values_are_those_of_torch() -> None:
    H = states()
    expected = [
        (Raw(), H),
        (RMSNorm(gain=GAIN, eps=1e-3), F.rms_norm(H, (4,), GAIN, 1e-3)),
        (RMSNorm(eps=0.0), F.rms_norm(H, (4,), None, 0.0)),
        (LayerNorm(gain=GAIN, bias=BIAS, eps=1e-3), F.layer_norm(H, (4,), GAIN, BIAS, 1e-3)),
        (LayerNorm(eps=0.0), F.layer_norm(H, (4,), None, None, 0.0)),
        (ClampedL2(eps=1.5), F.normalize(H, dim=-1, eps=1.5)),
        (DynamicTanh(alpha=0.7, gain=GAIN), GAIN * torch.tanh(0.7 * H)),
        (Tapered(gate=1.0, norm=RMSNorm(gain=GAIN)), F.rms_norm(H, (4,), GAIN, 1e-6)),
        (Tapered(gate=0.0, norm=RMSNorm(), linear=GAIN), GAIN * H),
        (Tapered(gate=0.25, norm=RMSNorm()), 0.25 * F.rms_norm(H, (4,), None, 1e-6) + 0.75 * H),
    ]
    for readout, value in expected:
        torch.testing.assert_close(readout(H), value, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    "readout",
    [
        Raw(),
        RMSNorm(gain=GAIN, eps=0.5),
        LayerNorm(gain=GAIN, bias=BIAS, eps=0.5),
        ClampedL2(eps=1e-3),
        ClampedL2(eps=1e3),
        DynamicTanh(alpha=0.7, gain=GAIN),
        Tapered(gate=0.25, norm=RMSNorm(gain=GAIN, eps=0.5), linear=BIAS),
    ],
    ids=lambda r: type(r).__name__,
)
def test_rates_are_derivatives_along_the_state(readout: TokenReadout) -> None:
    H = states()
    value, rate = torch.autograd.functional.jvp(readout, H, H)
    torch.testing.assert_close(readout.radial_rate(H), rate, rtol=1e-12, atol=1e-13)
    plain = value - BIAS if isinstance(readout, LayerNorm) else value
    share = rate.norm(dim=-1) / plain.norm(dim=-1)
    torch.testing.assert_close(readout.visibility(H), share, rtol=1e-12, atol=1e-13)
    assert readout.visibility(H).shape == (3, 5)


def test_visibility_in_numbers() -> None:
    # (1, −1, 1, −1): mean square 1, mean 0, variance 1, Euclidean norm 2.
    H = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=F64)
    assert Raw().visibility(H) == 1.0
    assert RMSNorm(eps=0.25).visibility(H).item() == 0.2
    assert RMSNorm(eps=0.0).visibility(H) == 0.0
    assert LayerNorm(eps=1.0).visibility(5 + H) == 0.5
    assert ClampedL2(eps=1.99).visibility(H) == 0.0
    assert ClampedL2(eps=2.01).visibility(H) == 1.0
    assert DynamicTanh(alpha=1.0).visibility(H).item() == pytest.approx(2 / math.sinh(2), rel=1e-14)
    # Half of ν = 0.2 of a norm's (±1)/√1.25, and half of the state itself.
    tapered = Tapered(gate=0.5, norm=RMSNorm(eps=0.25)).visibility(H).item()
    r = 1 / math.sqrt(1.25)
    assert tapered == pytest.approx((0.2 * r + 1) / (r + 1), rel=1e-14)


def test_at_the_clamp_the_norm_already_hides_scale() -> None:
    # ||(3, 4)||_2 = 5 exactly: max(||H||, ε) has a corner there, and both torch and the theory take the norm's side.
    H = torch.tensor([3.0, 4.0], dtype=F64, requires_grad=True)
    readout = ClampedL2(eps=5.0)
    assert readout.visibility(H.detach()) == 0.0
    (grad,) = torch.autograd.grad(readout(H)[0], H)
    assert (grad * H).sum().item() == pytest.approx(0.0, abs=1e-16)


def test_the_zero_token() -> None:
    zero = torch.zeros(4, dtype=F64)
    assert torch.equal(ClampedL2()(zero), zero)
    assert ClampedL2().visibility(zero) == 1.0
    assert RMSNorm(eps=1e-6).visibility(zero) == 1.0
    # Without an epsilon a norm has no value at zero, and says so as torch's does.
    assert RMSNorm(eps=0.0)(zero).isnan().all()
    assert F.rms_norm(zero, (4,), None, 0.0).isnan().all()
    assert RMSNorm(eps=0.0).visibility(zero).isnan()


def test_a_saturated_channel_keeps_its_digits() -> None:
    # 1 − tanh²(40) is 0 in float64; the rate is x/cosh²(x) = 160·e^(−80) up to e^(−160).
    rate = DynamicTanh(alpha=1.0).radial_rate(torch.tensor([40.0], dtype=F64)).item()
    assert rate == pytest.approx(160 * math.exp(-80), rel=1e-12, abs=0)
    assert DynamicTanh(alpha=1.0).radial_rate(torch.tensor([1e4], dtype=F64)).item() == 0.0


def test_a_softcap_damps_rates_behind_a_raw_readout_and_changes_nothing_behind_a_norm() -> None:
    H, W = states(), torch.randn(6, 4, dtype=F64)
    capped = Head(readout=Raw(), weight=W, softcap=2.0)
    z = H @ W.T
    torch.testing.assert_close(capped(H), 2 * torch.tanh(z / 2))
    torch.testing.assert_close(capped.radial_rate(H), z * (1 - torch.tanh(z / 2) ** 2))
    blind = Head(readout=RMSNorm(eps=0.0), weight=W, softcap=2.0)
    assert torch.equal(blind.radial_rate(H), torch.zeros_like(z))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_values_keep_the_dtype_of_the_state(dtype: torch.dtype) -> None:
    H = torch.ones(4).to(dtype)
    for readout in (Raw(), RMSNorm(), LayerNorm(), ClampedL2(), DynamicTanh(), Tapered(gate=0.5, norm=RMSNorm())):
        assert readout(H).dtype == dtype
        assert readout.visibility(H).dtype == dtype


def test_messages_name_the_setting_and_its_range() -> None:
    with pytest.raises(InputError, match=r"RMSNorm.eps is -1.0; expected a finite number >= 0"):
        RMSNorm(eps=-1.0)
    with pytest.raises(InputError, match=r"LayerNorm.eps is nan"):
        LayerNorm(eps=math.nan)
    with pytest.raises(InputError, match=r"ClampedL2.eps is 0; expected a finite number > 0"):
        ClampedL2(eps=0)
    with pytest.raises(InputError, match=r"DynamicTanh.alpha is -0.5; expected a finite number > 0"):
        DynamicTanh(alpha=-0.5)
    with pytest.raises(InputError, match=r"Tapered.gate is 1.5; expected a number in 0..1"):
        Tapered(gate=1.5, norm=RMSNorm())
    with pytest.raises(InputError, match=r"Head.softcap is 0.0; expected a finite number > 0, or None"):
        Head(readout=Raw(), weight=torch.zeros(2, 3), softcap=0.0)
    with pytest.raises(InputError, match=r"Head.weight has shape \(3,\); expected \(V, D\)"):
        Head(readout=Raw(), weight=torch.zeros(3))
    with pytest.raises(InputError, match=r"Head.weight has 3 channels, the state \(2, 4\) has 4"):
        Head(readout=Raw(), weight=torch.zeros(5, 3))(torch.zeros(2, 4))
    with pytest.raises(InputError, match=r"RMSNorm.gain has 4 channels, the state \(2, 3\) has 3; expected the same"):
        RMSNorm(gain=GAIN)(torch.zeros(2, 3))
    with pytest.raises(InputError, match=r"H is torch.int64"):
        Raw()(torch.zeros(2, 3, dtype=torch.int64))
