"""Readouts beyond torch's norms: values, calibration, schedule, and how much of the scale they show."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import loopverify as lv
from loopverify.errors import InputError
from loopverify.models import LoopedTransformer, TransformerConfig
from loopverify.models.readouts import DynamicTanh, TaperedNorm

D, V = 6, 5
EPS = 0.3


def tapered(**overrides: object) -> TaperedNorm:
    module = TaperedNorm(D, **{"eps": EPS, "taper": (0.25, 0.75), **overrides}).double()
    nn.init.normal_(module.norm.weight, mean=1.0, std=0.3)
    return module


def radial_signal(readout: nn.Module, head: Tensor, state: Tensor, targets: Tensor) -> Tensor:
    """<dL/dH, H> of each token, L = CE(head r(H), target)."""
    state = state.clone().requires_grad_()
    loss = nn.functional.cross_entropy(readout(state) @ head.T, targets, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, state)
    return (gradient * state).sum(-1).detach()


def predicted_signal(logits: np.ndarray, rates: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """E_p[rate] - rate_y: the derivative of the cross-entropy as the logits move at these rates."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return (p * rates).sum(-1) - rates[np.arange(len(targets)), targets]


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(7, D).double(), torch.randn(V, D).double(), torch.arange(7) % V


def test_dynamic_tanh_is_its_formula_and_starts_at_its_papers_defaults() -> None:
    module = DynamicTanh(D)
    state = torch.randn(2, 3, D)
    np.testing.assert_allclose(module(state).detach().numpy(), np.tanh(0.5 * state.numpy()), rtol=1e-6)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    alpha, gain, bias = (module.state_dict()[name].numpy() for name in ("alpha", "weight", "bias"))
    np.testing.assert_allclose(
        module(state).detach().numpy(), gain * np.tanh(alpha * state.numpy()) + bias, rtol=1e-5, atol=1e-6
    )


def test_dynamic_tanh_shows_the_scale_until_it_saturates(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    state, head, targets = batch
    module = DynamicTanh(D).double()
    for bias in (torch.randn(D), torch.zeros(D)):
        module.load_state_dict({**module.state_dict(), "bias": bias})
        sizes = []
        for factor in (1e-3, 1.0, 10.0, 100.0):
            x = 0.5 * factor * state.numpy()
            logits = (np.tanh(x) + module.bias.detach().numpy()) @ head.numpy().T
            # d tanh(e^t x)/dt = x (1 - tanh^2 x); the bias moves with nothing
            expected = predicted_signal(logits, x / np.cosh(x) ** 2 @ head.numpy().T, targets.numpy())
            found = radial_signal(module, head, factor * state, targets).numpy()
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-13)
            raw = radial_signal(nn.Identity(), head, 0.5 * factor * state, targets).numpy()
            sizes.append(np.abs(found).sum() / np.abs(raw).sum())
    # without a bias: as a raw readout of half the state, until channels saturate
    assert sizes[0] == pytest.approx(1, abs=1e-4)
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3]
    assert sizes[3] < 1e-2


def test_the_taper_is_half_a_cosine_between_its_fractions() -> None:
    module = tapered(taper=(0.2, 0.6))
    expected = {
        0.0: 1.0,
        0.2: 1.0,
        0.3: (1 + math.sqrt(0.5)) / 2,
        0.4: 0.5,
        0.5: (1 - math.sqrt(0.5)) / 2,
        0.6: 0.0,
        1.0: 0.0,
    }
    for fraction, gate in expected.items():
        module.set_progress(fraction)
        assert module.gate.item() == pytest.approx(gate, abs=1e-15)
    module.set_progress(0.1)  # nothing is remembered: the gate is a function of the fraction
    assert module.gate.item() == 1.0


def test_a_closed_gate_is_the_norm_bit_for_bit_and_an_open_one_a_fixed_scaling() -> None:
    module, state = tapered(), 50 * torch.randn(3, 4, D).double()
    norm = nn.RMSNorm(D, eps=EPS).double()
    norm.load_state_dict(module.norm.state_dict())
    assert torch.equal(module(state), norm(state))
    module.set_progress(0.5)
    torch.testing.assert_close(module(state), (norm(state) + module.scaling() * state) / 2, rtol=1e-14, atol=0)
    module.set_progress(1.0)
    torch.testing.assert_close(module(3 * state), 3 * module(state), rtol=1e-14, atol=0)
    torch.testing.assert_close(module(state), state * module.scaling(), rtol=0, atol=0)


def test_the_scaling_is_the_least_squares_fit_of_the_norm() -> None:
    module, state = tapered(), 3 * torch.randn(40, D).double()
    assert torch.equal(module.scaling(), module.norm.weight)  # not calibrated yet
    for _ in range(5):
        module(state)
    gain = module.norm.weight.detach().numpy()
    raw = state.numpy() * gain
    normalized = raw / np.sqrt((state.numpy() ** 2).mean(-1, keepdims=True) + EPS)
    (a,), *_ = np.linalg.lstsq(raw.reshape(-1, 1), normalized.ravel(), rcond=None)
    np.testing.assert_allclose(module.scaling().detach().numpy(), a * gain, rtol=1e-12)


def test_calibration_forgets_and_stands_still_outside_of_training_and_once_the_taper_began() -> None:
    module, (first, second) = tapered(), torch.randn(2, 9, D).double()
    module(first)
    module(second)
    energies = [(x * module.norm.weight).square().mean().item() for x in (first, second)]
    assert module.energy.item() == pytest.approx(0.01 * (0.99 * energies[0] + energies[1]), rel=1e-12)
    kept = module.energy.item(), module.matched.item()
    module.eval()
    module(first)
    module.train()
    module.set_progress(0.3)
    module(1000 * first)
    assert (module.energy.item(), module.matched.item()) == kept


@pytest.mark.parametrize("fraction", [0.0, 0.4, 1.0])
def test_the_tapered_readout_shows_as_much_of_the_scale_as_its_parts(
    fraction: float, batch: tuple[Tensor, Tensor, Tensor]
) -> None:
    state, head, targets = batch
    module = tapered()
    module(state)
    module.eval().set_progress(fraction)
    g, c = module.gate.item(), module.scaling().detach().numpy()
    H, gain = state.numpy(), module.norm.weight.detach().numpy()
    mean_square = (H**2).mean(-1, keepdims=True)
    normalized = H / np.sqrt(mean_square + EPS) * gain
    # the norm's part moves at eps/(s^2 + eps) of its value, the linear part at all of it
    rates = (g * EPS / (mean_square + EPS) * normalized + (1 - g) * c * H) @ head.numpy().T
    logits = (g * normalized + (1 - g) * c * H) @ head.numpy().T
    expected = predicted_signal(logits, rates, targets.numpy())
    np.testing.assert_allclose(radial_signal(module, head, state, targets).numpy(), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("taper", [(0.0, 0.5), (0.5, 0.5), (0.6, 0.4), (0.5, 1.1), (math.nan, 0.5)])
def test_a_taper_without_room_is_refused(taper: tuple[float, float]) -> None:
    with pytest.raises(InputError, match=r"taper is \(.*\); expected fractions of training 0 < start < stop <= 1"):
        tapered(taper=taper)


TOKENS = torch.tensor([[1, 5, 9, 2], [12, 0, 0, 7]])


def model(readout: str, seed: int = 0) -> LoopedTransformer:
    torch.manual_seed(seed)
    return LoopedTransformer(TransformerConfig(vocab_size=13, d_model=12, heads=3, readout=readout, init_std=0.3))


@pytest.mark.parametrize("readout", ["dynamic_tanh", "tapered"])
def test_a_model_shows_its_exits_through_the_named_readout(readout: str) -> None:
    module = model(readout).eval()
    trace = lv.unroll(module.looped(), TOKENS)
    for k in (1, 4):
        torch.testing.assert_close(trace.logits(k), module.head(module.readout_norm(trace.states[k])), rtol=0, atol=0)
    assert module.looped().name == f"looped_transformer/{readout}"
    assert isinstance(module.readout_norm, {"dynamic_tanh": DynamicTanh, "tapered": TaperedNorm}[readout])


def test_a_step_of_training_calibrates_at_every_exit_and_its_gradient_arrives() -> None:
    module = model("tapered")
    for fraction in (0.1, 0.5, 1.0):
        module.set_progress(fraction)
        trace = lv.unroll(module.looped(), TOKENS, grad=True)
        lv.objectives.named("per_loop")(trace, TOKENS).total.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    energy = module.readout_norm.energy.item()
    # four calls of equal weight at fraction 0.1 only, each with 1 % of the mean of what it saw
    assert 0 < energy < 0.04 * max(s.square().mean().item() for s in trace.states)


def test_the_progress_of_a_taper_is_part_of_what_is_saved() -> None:
    module = model("tapered")
    lv.objectives.named("per_loop")(lv.unroll(module.looped(), TOKENS), TOKENS)
    module.set_progress(0.6)
    other = model("tapered", seed=1)
    other.load_state_dict(module.state_dict())
    a, b = (lv.unroll(m.eval().looped(), TOKENS).logits(4) for m in (module, other))
    assert torch.equal(a, b)
    assert 0 < other.readout_norm.gate.item() < 1


@pytest.mark.parametrize("readout", ["tapered", "rmsnorm"])
@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_a_progress_that_is_no_fraction_is_refused(readout: str, fraction: float) -> None:
    with pytest.raises(InputError, match=rf"progress is {fraction}; expected the fraction of training that is done"):
        model(readout).set_progress(fraction)


def test_progress_changes_nothing_without_a_schedule() -> None:
    module = model("rmsnorm")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.set_progress(0.7)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_unknown_readouts_list_all_of_them() -> None:
    with pytest.raises(
        InputError,
        match="unknown readout 'norm'; expected one of: rmsnorm, raw, layernorm, final_only, dynamic_tanh, tapered",
    ):
        model("norm")
