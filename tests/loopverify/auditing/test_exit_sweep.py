"""What an exit shows of the scale, against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.auditing.exit_sweep import Exit, exit_sweep
from loopverify.errors import InputError
from loopverify.theory.readouts import DynamicTanh, Head, RMSNorm, Tapered
from tests.loopverify.closed_form import HEAD, TARGETS, TOKENS, layernorm, looped, raw, rmsnorm

ALPHAS = (1 / 16, 1 / 4, 4, 16)


def sweep(readout: object, start: float = 1.0, dtype: torch.dtype = torch.float64) -> Exit:
    return exit_sweep(lv.unroll(looped(lambda H: H.clone(), readout, start=start, dtype=dtype), TOKENS), TARGETS, 1)


def test_a_raw_exit_answers_in_proportion() -> None:
    view = sweep(raw)
    assert view.visibility == "visible"
    assert view.visibility_factor == pytest.approx(1.0)
    assert [point.alpha for point in view.sweep] == list(ALPHAS)
    assert [point.response for point in view.sweep] == pytest.approx([abs(a - 1) for a in ALPHAS])
    assert view.drift_response == pytest.approx(1023)
    assert view.lasting_response == pytest.approx(1.0)


@pytest.mark.parametrize(
    "readout", [rmsnorm, layernorm, lambda H: raw(H / H.norm(dim=-1, keepdim=True).clamp_min(1e-6))]
)
def test_a_blind_exit_does_not_answer_at_all(readout: object) -> None:
    view = sweep(readout)
    assert view.visibility == "hidden"
    assert view.visibility_factor == pytest.approx(0, abs=1e-12)
    # Powers of two scale a float exactly: not one bit of the logits moves.
    assert [point.response for point in view.sweep] == [0.0] * 4
    assert view.drift_response == view.lasting_response == 0.0
    assert all(point.loss_change == point.max_logit_change == 0.0 for point in view.sweep)


@pytest.mark.parametrize("ratio", [1e-4, 1e-2, 0.5, 2.0, 100.0])
def test_epsilon_shows_as_lemma_1_says(ratio: float) -> None:
    # rms(H) = 1 at every token, so r(αH)/r(H) = α·√(1 + ε)/√(α² + ε) and ν = ε/(1 + ε).
    view = sweep(lambda H: rmsnorm(H, eps=ratio))

    def answer(alpha: float) -> float:
        return abs(alpha * math.sqrt((1 + ratio) / (alpha**2 + ratio)) - 1)

    assert view.visibility_factor == pytest.approx(ratio / (1 + ratio), rel=1e-9)
    assert [point.response for point in view.sweep] == pytest.approx([answer(a) for a in ALPHAS], rel=1e-9)
    assert view.drift_response == pytest.approx(answer(1024), rel=1e-9)
    # Hidden where growth changes the logits by less than half: √(1 + ε/s²) < 1.5, that is ε < 1.25 s².
    assert view.visibility == ("hidden" if ratio < 1.25 else "saturating")


def test_the_reported_changes_are_those_of_the_loss_and_the_logits() -> None:
    trace = lv.unroll(looped(lambda H: H.clone(), raw), TOKENS)
    view = exit_sweep(trace, TARGETS, 2)
    z = trace.states[2] @ HEAD.T

    def nats(logits: Tensor) -> float:
        return float(-logits.log_softmax(-1).gather(-1, TARGETS[..., None]).mean())

    assert view.loss == pytest.approx(nats(z))
    for point in view.sweep:
        assert point.loss_change == pytest.approx(nats(point.alpha * z) - nats(z))
        assert point.max_logit_change == pytest.approx(float(((point.alpha - 1) * z).abs().max()))


def test_a_saturating_readout_shows_small_scales_and_hides_large_ones() -> None:
    head = Head(readout=DynamicTanh(alpha=0.5), weight=HEAD)
    assert sweep(head, start=0.02).visibility == "saturating"
    assert sweep(head, start=1e4).visibility == "hidden"


def test_a_tapered_norm_is_visible_as_soon_as_its_linear_part_shows_within_the_drift() -> None:
    def tapered(gate: float) -> Head:
        return Head(readout=Tapered(gate=gate, norm=RMSNorm(eps=0.0)), weight=HEAD)

    assert sweep(tapered(1.0)).visibility == "hidden"
    assert sweep(tapered(0.99)).visibility == "visible"
    assert sweep(tapered(1 - 1e-6)).visibility == "hidden"  # a thousandth, even after growing a thousandfold


def test_softmax_does_not_see_a_shift_of_all_logits() -> None:
    # Every logit grows by the same amount, which no loss notices.
    ones = torch.ones(1, 5, dtype=torch.float64)
    assert sweep(lambda H: rmsnorm(H) + H.norm(dim=-1, keepdim=True) * ones).visibility == "hidden"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precisions(dtype: torch.dtype) -> None:
    assert sweep(raw, dtype=dtype).visibility == "visible"  # though float16 logits may overflow after the drift
    assert sweep(lambda H: rmsnorm(H.float(), 1e-6), dtype=dtype).visibility == "hidden"


def test_ignored_targets_count_for_nothing() -> None:
    trace = lv.unroll(looped(lambda H: H.clone(), raw), TOKENS)
    some = TARGETS.clone()
    some[1] = -100
    z = (trace.states[1] @ HEAD.T)[0]
    expected = float(-z.log_softmax(-1).gather(-1, TARGETS[0][:, None]).mean())
    view = exit_sweep(trace, some, 1)
    assert view.loss == pytest.approx(expected)
    assert view.visibility_factor == pytest.approx(1.0)


def test_targets_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(InputError, match=r"targets contain 5; expected 0..4 for 5 logits \(-100 leaves a token out\)"):
        exit_sweep(lv.unroll(looped(lambda H: H.clone(), raw), TOKENS), TARGETS + 3, 1)


def test_an_exit_that_does_not_read_the_state_is_hidden() -> None:
    view = sweep(lambda H: torch.zeros(*H.shape[:-1], 5, dtype=H.dtype))
    assert (view.visibility, view.visibility_factor) == ("hidden", None)
