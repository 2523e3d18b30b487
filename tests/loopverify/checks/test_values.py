"""The numbers that checks report, on models for which they are known in closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import loopverify as lv
from loopverify.checks import CHECKS, CheckResult
from loopverify.checks.readout.reports import _change
from loopverify.checks.subject import Subject, gap, rounding, token_gaps
from loopverify.models import LoopedTransformer, TransformerConfig
from loopverify.objectives import norm_penalty
from tests.loopverify.checks.clean import CachedTransformer, GatedTransformer, build

V, D = 11, 8


class Scaled(nn.Module):
    """H_k = factor * H_{k-1}, read out raw or through an RMSNorm."""

    def __init__(self, factor: float, *, hidden: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(V, D), nn.Linear(D, V, bias=False)
        self.factor, self.norm = factor, nn.RMSNorm(D, eps=1e-6) if hidden else nn.Identity()

    def looped(self) -> lv.Looped:
        return lv.Looped(
            embed=lambda tokens: (self.table(tokens), None),
            step=lambda state, context, loop: self.factor * state,
            readout=lambda state, context, loop, loops: self.head(self.norm(state)),
            trained_loops=2,
            module=self,
        )


def run(check: str, model: lv.Looped) -> CheckResult:
    return CHECKS[check].run(model)


def test_a_gap_is_the_largest_distance_over_the_rms_norm_of_all_tokens() -> None:
    b = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])  # norms 5 and 1, whose rms is sqrt(13)
    a = b + torch.tensor([[[0.0, 0.0], [0.6, 0.8]]])
    torch.testing.assert_close(token_gaps(a, b), torch.tensor([[0.0, 1 / math.sqrt(13)]]).double())
    assert gap(a, b) == pytest.approx(1 / math.sqrt(13))
    assert gap(b, b) == gap(0 * b, 0 * b) == 0
    assert gap(a, 0 * b) == gap(a[:, :1], b) == math.inf
    assert math.isnan(gap(a * math.nan, b))


def test_rounding_is_one_eps_for_every_channel_added_in_quadrature() -> None:
    assert rounding(torch.float32, 64) == 8 * 2.0**-23
    assert rounding(torch.bfloat16, 1024) == 32 * 2.0**-7


def test_the_limit_is_what_a_disturbance_by_rounding_does_to_the_model() -> None:
    # For H_k = 2 H_{k-1} perturbations grow with the state and add in quadrature: none may be lost or amplified.
    model = Scaled(2.0, hidden=False).double().looped()
    subject = Subject(model)
    unit = rounding(torch.float64, D)
    largest_of_few = subject.response(unit, logits=False) / unit
    assert 1 < largest_of_few < 4 * math.sqrt(subject.loops + 1)
    assert subject.state_limit == pytest.approx(16 * unit * largest_of_few, rel=0.5)
    assert subject.state_limit < 1e-12


def test_the_limit_grows_with_the_gain_of_the_model() -> None:
    # H_k - 1 = 10 (H_{k-1} - 1) from H_0 = 1: the states stay 1, and a relative perturbation grows tenfold per loop.
    model = lv.Looped(
        embed=lambda tokens: (torch.ones(*tokens.shape, D, dtype=torch.float64), None),
        step=lambda state, context, loop: 1 + 10 * (state - 1),
        readout=lambda state, context, loop, loops: state,
        trained_loops=3,
        vocab_size=D,
    )
    gain = Subject(model).state_limit / (16 * rounding(torch.float64, D))
    assert 1e3 < gain < 4e3


@pytest.mark.parametrize("factor", [1.25, 3.0])
def test_the_growth_of_a_scaled_state_is_its_factor(factor: float) -> None:
    result = run("hidden_growth", Scaled(factor, hidden=True).looped())
    assert result.value == pytest.approx(factor, rel=1e-6)
    assert result.limit == 1.5
    assert result.status == ("passed" if factor < 1.5 else "failed")
    assert f"(factor {factor:g})" in result.message or result.status == "failed"


def test_growth_that_the_readout_shows_is_no_fault() -> None:
    result = run("hidden_growth", Scaled(3.0, hidden=False).looped())
    assert result.status == "passed"
    assert "visible to the readout: a loss can control it" in result.message
    assert result.value == pytest.approx(3.0, rel=1e-6)


def test_an_honest_pre_norm_model_is_named_a_blind_spot_and_passes() -> None:
    result = run("hidden_growth", build("rmsnorm", 0))
    assert result.status == "passed"
    assert "hidden to the readout; carried by the loop (factor 1): a blind spot by design" in result.message


def test_a_block_that_ends_in_a_norm_is_named_removed_without_a_boundary_norm() -> None:
    assert "removed by the loop (factor" in run("hidden_growth", build("postnorm", 0)).message
    assert "damped by the loop (factor 0.9)" in run("hidden_growth", build("damped", 0)).message


def test_exit_probabilities_short_of_one_are_reported_by_how_much() -> None:
    class Halves(GatedTransformer):
        def exit_probabilities(self, trace: lv.Trace) -> Tensor:
            shares = 0.5 ** torch.arange(1, trace.loops + 1)
            return shares.expand(*trace.tokens.shape, trace.loops)

    result = run("exit_probabilities", Halves().looped())
    assert result.value == 0.5**8  # what eight halvings leave
    assert result.unit == "probability"


@pytest.mark.parametrize(("share", "tokens"), [(0.1, 3), (0.5, 15), (1.0, 30)])
def test_the_share_of_tokens_that_leave_early_is_reported(share: float, tokens: int) -> None:
    class LeavesEarly(GatedTransformer):
        def choose_exit(self, trace: lv.Trace, threshold: float) -> Tensor:
            chosen = torch.full((trace.tokens.numel(),), trace.loops)
            chosen[:tokens] = 1
            return chosen.view_as(trace.tokens)

    assert run("never_exit_early", LeavesEarly().looped()).value == pytest.approx(share)


def test_the_penalty_is_felt_as_its_formula_says() -> None:
    # lambda * mean_k E[s_k^2]: 2 lambda s^2 / (K tokens) at one token, 2 lambda E[s_k^2] / K over all tokens of H_k.
    subject = Subject(CachedTransformer().double().looped())
    trace = subject.trace
    for k in range(1, trace.loops + 1):
        mean_square = float(trace.states[k].square().mean())
        change = _change(lambda t: 0.3 * norm_penalty(t), trace, k)
        assert change == pytest.approx(2 * 0.3 * mean_square / trace.loops, rel=1e-9)


def test_a_penalty_on_something_else_than_the_square_is_judged_by_its_own_value() -> None:
    model = CachedTransformer().looped()
    honest = replace(model, penalty=lambda trace: trace.states[-1].norm(dim=-1).mean())
    assert run("penalty_gradient", honest).status == "passed"
    halved = replace(model, penalty=lambda t: norm_penalty(t) / 2 + norm_penalty(t).detach() / 2)
    result = run("penalty_gradient", halved)
    assert result.status == "failed"
    assert result.value == pytest.approx(0.5, rel=1e-2)


def test_a_gradient_of_twice_the_right_size_is_found() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return 2 * gradient

    class Doubled(CachedTransformer):
        def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
            return Twice.apply(super().step(state, context, loop))

    result = run("gradient_is_derivative", Doubled().looped())
    assert result.status == "failed"
    assert result.value > 0.5


def test_module_calls_are_counted_in_every_loop() -> None:
    # Each of two layers is a call, and calls two norms, two mixers, their four linear maps and twice its dropout.
    assert "each of 4 loops makes 22 module calls" in run("loops_executed", CachedTransformer().looped()).message


def test_overshoot_is_reported_by_the_ratio_to_the_trained_loops() -> None:
    message = run("overshoot", build("rmsnorm", 0)).message
    assert message.startswith("CE by K / r0 on random tokens: ")
    curve, divergence = message.split("; ")
    assert curve.count(" at ") == 4  # 1, 2, 3 and 4 for r0 = 3, where halves are no loop counts
    assert divergence.startswith("KL from the trained exit at 4: ")


def test_the_divergence_of_overshoot_is_that_of_the_two_distributions() -> None:
    # Raw logits that double at every loop: z after r0 = 2 loops, 64 z after 8.
    model = Scaled(2.0, hidden=False).looped()
    tokens = Subject(model).tokens
    z = lv.unroll(model, tokens, loops=2).logits(2).double()
    p, q = torch.distributions.Categorical(logits=z), torch.distributions.Categorical(logits=64 * z)
    expected = torch.distributions.kl_divergence(p, q).mean()
    assert f"KL from the trained exit at 4: {expected:.2g} nats" in run("overshoot", model).message


def test_overshoot_looks_beyond_any_number_of_trained_loops() -> None:
    for trained_loops, longest in ((1, 4), (16, 64), (60, 75), (64, 80)):
        model = replace(Scaled(1.0, hidden=False).looped(), trained_loops=trained_loops)
        assert f"KL from the trained exit at {longest / trained_loops:g}: " in run("overshoot", model).message
    # A state that doubles at every loop overflows in float32 after some 124 loops.
    late = run("overshoot", replace(Scaled(2.0, hidden=False).looped(), trained_loops=115))
    assert late.status == "failed"
    assert "the loss is not finite from K / r0 = 1.0" in late.message


def test_the_suite_stays_small() -> None:
    # In steps of the model on some thirty tokens rather than in seconds.
    calls = 0.0

    class Counted(LoopedTransformer):
        def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
            nonlocal calls
            calls += state.shape[:2].numel() / 30
            return super().step(state, context, loop)

    torch.manual_seed(0)
    lv.check_looped_model(Counted(TransformerConfig(vocab_size=32)))
    assert calls < 1000
