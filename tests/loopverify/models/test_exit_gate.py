"""Exit distributions and thresholds against stick-breaking in exact and in plain Python arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.models import READOUTS, LoopedTransformer, TransformerConfig
from loopverify.models.exit_gate import ExitGate, exit_distribution, first_exit

TOKENS = torch.tensor([[1, 5, 9, 2], [12, 0, 0, 7]])
CONFIG = {"vocab_size": 13, "d_model": 12, "layers": 1, "heads": 3, "d_ff": 10, "init_std": 0.4, "exit_gate": True}


def build(**overrides: object) -> LoopedTransformer:
    module = LoopedTransformer(TransformerConfig(**{**CONFIG, **overrides})).double().eval()
    torch.nn.init.normal_(module.exit_gate.weight)
    return module


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


def test_a_stick_is_broken_as_in_exact_arithmetic() -> None:
    shares = [Fraction(1, 4), Fraction(2, 3), Fraction(1, 2)]
    logits = torch.tensor([logit(float(share)) for share in shares], dtype=torch.float64)
    # 1/4; 3/4 * 2/3 = 1/2; 3/4 * 1/3 * 1/2 = 1/8; and the last takes the rest, 1/8
    assert exit_distribution(logits).tolist() == pytest.approx([0.25, 0.5, 0.125, 0.125], rel=1e-14)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4])
def test_probabilities_are_a_distribution_however_strong_the_gates(scale: float) -> None:
    p = exit_distribution(scale * torch.randn(500, 7))
    assert p.shape == (500, 8)
    assert p.min() >= 0
    assert (p.double().sum(-1) - 1).abs().max() < 8 * torch.finfo(torch.float32).eps


def test_a_single_exit_is_certain() -> None:
    none = torch.empty(2, 3, 0)
    assert exit_distribution(none).tolist() == [[[1.0]] * 3] * 2
    assert first_exit(none, 0.5).tolist() == [[1] * 3] * 2


def test_a_threshold_chooses_the_first_exit_that_the_running_sum_reaches() -> None:
    logits = torch.tensor([logit(0.25), logit(2 / 3), logit(0.5)], dtype=torch.float64)
    # running sums: 0.25, 0.75, 0.875, 1
    expected = {0.0: 1, 0.2: 1, 0.26: 2, 0.74: 2, 0.76: 3, 0.87: 3, 0.88: 4, 1.0: 4}
    for threshold, exit_ in expected.items():
        chosen = first_exit(logits, threshold)
        assert (chosen.item(), chosen.dtype) == (exit_, torch.int64), threshold


@pytest.mark.parametrize("strength", [1.0, 17.0, 100.0, 1e5])
def test_a_threshold_of_one_waits_although_the_running_sum_rounds_to_one(strength: float) -> None:
    logits = torch.full((7,), strength)
    assert first_exit(logits, 1.0).item() == 8
    if strength >= 17:  # where the naive rule leaves early
        assert exit_distribution(logits).cumsum(-1)[-2] == 1.0


@pytest.mark.parametrize("threshold", [-0.1, 1.5, math.nan])
def test_a_threshold_that_is_no_probability_is_refused(threshold: float) -> None:
    with pytest.raises(
        InputError, match=rf"the exit threshold is {threshold}; expected a cumulative probability in 0..1"
    ):
        first_exit(torch.zeros(3), threshold)


def test_a_new_gate_is_fair_and_its_logits_are_never_half_precision() -> None:
    gate = ExitGate(6)
    assert exit_distribution(gate(torch.randn(2, 4, 6))[..., None].expand(2, 4, 3)).tolist()[0][0] == pytest.approx(
        [1 / 2, 1 / 4, 1 / 8, 1 / 8]
    )
    assert gate.bfloat16()(torch.randn(2, 4, 6).bfloat16()).dtype == torch.float32
    assert gate.double()(torch.randn(2, 4, 6).double()).dtype == torch.float64


@pytest.mark.parametrize("readout", READOUTS)
def test_the_model_gates_what_its_exits_show(readout: str) -> None:
    module = build(readout=readout)
    model = module.looped()
    trace = lv.unroll(model, TOKENS, loops=3)
    left = torch.ones(2, 4, dtype=torch.float64)
    for k, p in enumerate(model.exit_probabilities(trace).unbind(-1), start=1):
        shown = module.readout_norm(trace.states[k]) if readout not in ("raw", "final_only") else trace.states[k]
        share = 1 / (1 + (-(shown * module.exit_gate.weight).sum(-1) - module.exit_gate.bias).exp()) if k < 3 else 1
        torch.testing.assert_close(p, share * left, rtol=1e-12, atol=0)
        left = left - share * left
    chosen = model.choose_exit(trace, 0.6)
    running = model.exit_probabilities(trace).cumsum(-1)
    assert torch.equal(chosen, 1 + (running < 0.6).sum(-1))


def test_exits_follow_the_length_of_the_run_and_its_gradient_mode() -> None:
    model = build().looped()
    for loops in (1, 2, 6):
        assert model.exit_probabilities(lv.unroll(model, TOKENS, loops=loops)).shape == (2, 4, loops)
    assert not model.exit_probabilities(lv.unroll(model, TOKENS)).requires_grad
    assert model.exit_probabilities(lv.unroll(model, TOKENS, grad=True)).requires_grad


def test_in_bfloat16_probabilities_sum_to_one_and_one_still_waits() -> None:
    module = build().bfloat16()
    model = module.looped()
    trace = lv.unroll(model, TOKENS, loops=8)
    for scale in (1.0, 100.0):
        with torch.no_grad():
            module.exit_gate.weight.mul_(scale)
        p = model.exit_probabilities(trace)
        assert p.dtype == torch.float32
        assert (p.double().sum(-1) - 1).abs().max() < 1e-6
        assert (model.choose_exit(trace, 1.0) == 8).all()


def test_behind_a_norm_the_gate_does_not_see_the_scale() -> None:
    def radial_share(readout: str) -> Tensor:
        model = build(readout=readout, norm_eps=0.0).looped()
        trace = lv.unroll(model, TOKENS, loops=2)
        state = trace.states[1].clone().requires_grad_()
        seen = lv.Trace(model, TOKENS, (trace.states[0], state, trace.states[2]), trace.context)
        (gradient,) = torch.autograd.grad(model.exit_probabilities(seen)[..., 0].sum(), state)
        return ((gradient * state).sum(-1).abs() / (gradient.norm(dim=-1) * state.norm(dim=-1))).max()

    assert radial_share("rmsnorm") < 1e-14
    assert radial_share("raw") > 1e-2


def test_a_model_without_a_gate_has_no_exits() -> None:
    module = LoopedTransformer(TransformerConfig(vocab_size=13))
    model = module.looped()
    assert (model.exit_probabilities, model.choose_exit) == (None, None)
    with pytest.raises(InputError, match=r"no exit gate; build it with TransformerConfig\(exit_gate=True\)"):
        module.exit_probabilities(lv.unroll(model, TOKENS))
