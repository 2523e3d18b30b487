"""What whole objectives see: penalties, detached penalties, gates and comparisons, however they read a state."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.auditing.exit_sweep import exit_sweep
from loopverify.auditing.gradients import direct_gradients
from loopverify.auditing.visibility import Signal, overall, seen_by, signals
from loopverify.objectives import Terms, named
from loopverify.theory.readouts import DynamicTanh, Head
from tests.loopverify.closed_form import HEAD, TARGETS, TOKENS, layernorm, looped, raw, rms, rmsnorm

Objective = Callable[[lv.Trace, Tensor], Terms]


def observe(
    objective: Objective, readout: object = rmsnorm, start: float = 1.0, targets: Tensor = TARGETS
) -> tuple[Signal, ...]:
    trace = lv.unroll(looped(lambda H: H.clone(), readout, start=start), TOKENS)
    exits = [exit_sweep(trace, targets, loop) for loop in range(1, 5)]
    return signals(trace, targets, objective, direct_gradients(trace, targets, objective), exits, torch.float64)


def only(term: Callable[[lv.Trace], Tensor]) -> Objective:
    return lambda trace, targets: Terms({"term": term(trace)})


def test_a_blind_exit_is_hidden_and_a_raw_one_visible_at_every_supervised_loop() -> None:
    blind = observe(named("per_loop"))
    assert [(s.term, s.loop, s.scale) for s in blind] == [("per_loop", k, "hidden") for k in (1, 2, 3, 4)]
    assert all(s.scale_defect < 1e-12 for s in blind)
    seen = observe(named("terminal"), raw)
    assert [(s.term, s.loop, s.scale) for s in seen] == [("terminal", 4, "visible")]
    assert seen[0].scale_defect >= 1


def test_a_raw_exit_stays_visible_when_the_softmax_is_certain() -> None:
    # The targets are the model's own predictions, with large margins: growth makes the gradient vanish, not the logits.
    trace = lv.unroll(looped(lambda H: H.clone(), raw), TOKENS)
    sure = trace.logits(1).argmax(-1)
    (signal,) = observe(named("terminal"), raw, start=20.0, targets=sure)
    assert signal.scale == "visible"


@pytest.mark.parametrize("start", [1e-3, 1.0, 1e3])
def test_a_penalty_sees_scale_at_any_size(start: float) -> None:
    found = observe(named("per_loop+penalty", penalty=0.01), start=start)
    assert seen_by(found, "scale") == ("penalty",)
    assert seen_by(found, "mean") == ("per_loop", "penalty")


TERMS = {
    "a detached penalty": (lambda t: t.logits(4).square().mean() + t.states[4].detach().square().mean(), "hidden"),
    "a hinge that does not bite yet": (lambda t: (rms(t.states[4]) - 5).clamp_min(0).square().mean(), "visible"),
    "a penalty on log scale": (lambda t: rms(t.states[4]).log().square().mean(), "visible"),
    "log scale itself": (lambda t: rms(t.states[4]).log().mean(), "visible"),
    "growth from loop to loop": (lambda t: (rms(t.states[4]) / rms(t.states[3]) - 1.5).square().mean(), "visible"),
    "the common scale of all tokens": (lambda t: (t.states[4].square().mean() - 1).square(), "visible"),
    "growth of the common scale": (
        lambda t: (t.states[4].square().mean() / t.states[3].square().mean() - 1.5).square(),
        "visible",
    ),
    "scales of neighbors": (
        lambda t: (rms(t.states[4][:, 1:]) / rms(t.states[4][:, :-1]) - 2).square().mean(),
        "hidden",
    ),
    "log of the last scale over the first": (
        lambda t: (rms(t.states[4][:, -1]) / rms(t.states[4][:, 0])).log().mean(),
        "hidden",
    ),
    "direction only": (lambda t: (t.states[4] / rms(t.states[4]))[..., 0].square().mean(), "hidden"),
    "cosine of two loops": (
        lambda t: torch.cosine_similarity(t.states[4], t.states[3].roll(1, -1), dim=-1).mean(),
        "hidden",
    ),
    "a linear gate on the raw state": (
        lambda t: t.states[4][..., 0].tanh().mean() * 0 + t.states[4][..., 0].mean(),
        "visible",
    ),
}


@pytest.mark.parametrize("name", TERMS)
def test_single_terms(name: str) -> None:
    term, expected = TERMS[name]
    found = observe(only(term))
    assert overall([s.scale for s in found if s.loop == 4]) == expected


def over(*dims: int) -> Callable[[Tensor], Tensor]:
    """A readout with one norm over these dimensions of (B, T, D)."""

    def readout(state: Tensor) -> Tensor:
        spread = state * torch.linspace(1, 2, state.shape[1], dtype=state.dtype)[:, None]
        return raw(spread / spread.square().mean(dims, keepdim=True).sqrt())

    return readout


@pytest.mark.parametrize("objective", ["per_loop", "terminal"])
def test_a_norm_over_a_whole_sequence_or_batch_hides_the_common_scale(objective: str) -> None:
    for dims in ((1, 2), (0, 1, 2)):
        found = observe(named(objective), over(*dims))
        assert {s.scale for s in found} == {"hidden"}
        assert all(s.common_defect < 1e-12 for s in found)
        # Tokens that grow apart change each other's share of the norm.
        assert all(s.relative_only for s in found if s.loop % 2 == 0)
        assert seen_by(found, "scale") == ()
    assert not any(s.relative_only for s in observe(named(objective)))  # a norm of every token hides both
    assert not any(s.relative_only for s in observe(named(objective), raw))


def test_terms_that_compare_tokens_only_see_relative_scales_only() -> None:
    for name, (term, _) in TERMS.items():
        relative = any(s.relative_only for s in observe(only(term)))
        assert relative == (name in ("scales of neighbors", "log of the last scale over the first")), name


def test_one_seeing_term_is_enough_whatever_the_other_is() -> None:
    found = observe(named("terminal+penalty"))
    assert {s.scale for s in found if s.term == "terminal"} == {"hidden"}
    assert overall([s.scale for s in found]) == "visible"


def test_a_saturating_readout_shows_scale_now() -> None:
    head = Head(readout=DynamicTanh(alpha=0.5), weight=HEAD)
    assert {s.scale for s in observe(named("per_loop"), head, start=0.02)} == {"saturating"}
    assert {s.scale for s in observe(named("per_loop"), head, start=1e4)} <= {"hidden"}
    # A penalty does not saturate.
    assert "visible" in {s.scale for s in observe(named("per_loop+penalty"), head, start=0.02)}


def test_the_mean_channel_is_hidden_behind_a_layernorm_only() -> None:
    behind = observe(named("per_loop"), layernorm)
    assert {s.mean for s in behind} == {"hidden"}
    assert all(s.mean_fraction < 1e-14 for s in behind)
    for readout in (raw, rmsnorm):
        assert {s.mean for s in observe(named("per_loop"), readout)} == {"visible"}


def test_the_defect_of_a_norm_s_epsilon() -> None:
    # α·∇L(αH) − ∇L(H)_turning over the latter is √(1 + ε/s²) − 1 as α grows, here with s = 1.
    eps = 0.01
    (signal,) = observe(only(lambda t: t.logits(4)[..., 0].mean()), lambda H: rmsnorm(H, eps))
    assert signal.scale_defect == pytest.approx(math.sqrt(1 + eps) - 1, rel=1e-3)


def test_a_term_that_reads_nothing_is_left_out() -> None:
    assert observe(lambda trace, targets: Terms({"constant": torch.ones(())})) == ()


def test_overall_is_the_best_view() -> None:
    assert overall(["hidden", "saturating", "visible"]) == "visible"
    assert overall(["hidden", "saturating"]) == "saturating"
    assert overall(["hidden"]) == "hidden"
