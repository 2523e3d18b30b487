"""Direct and indirect gradients against one backward pass through the whole run."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.auditing.gradients import direct_gradients, indirect_gradients, radial_gradient, working_dtype
from loopverify.errors import InputError
from loopverify.objectives import Terms, named
from tests.loopverify.closed_form import TARGETS, TOKENS, D, looped, radial_step


def transformer(**settings: object) -> lv.Looped:
    config = lv.models.TransformerConfig(vocab_size=5, d_model=8, d_ff=16, init_std=0.5, **settings)
    return lv.models.LoopedTransformer(config).double().eval().looped()


@pytest.mark.parametrize("objective", ["terminal", "per_loop", "per_loop+penalty"])
@pytest.mark.parametrize("readout", ["rmsnorm", "raw", "final_only"])
def test_direct_and_indirect_sum_to_the_gradient_of_the_whole_run(objective: str, readout: str) -> None:
    model = transformer(readout=readout)
    trace = lv.unroll(model, TOKENS)
    direct = direct_gradients(trace, TARGETS, named(objective))
    indirect = indirect_gradients(trace, direct)

    whole = lv.unroll(model, TOKENS, grad=True)
    expected = torch.autograd.grad(named(objective)(whole, TARGETS).total, whole.states[1:])
    for k in range(4):
        total = sum(gradients[k] for gradients in direct.values()) + indirect[k]
        torch.testing.assert_close(total, expected[k], rtol=1e-9, atol=1e-12)


def test_a_terminal_loss_has_a_direct_gradient_at_the_last_state_only() -> None:
    trace = lv.unroll(transformer(), TOKENS)
    direct = direct_gradients(trace, TARGETS, named("terminal"))["terminal"]
    indirect = indirect_gradients(trace, {"terminal": direct})
    assert [bool(g.any()) for g in direct] == [False, False, False, True]
    assert [bool(g.any()) for g in indirect] == [True, True, True, False]


def test_terms_are_kept_separate() -> None:
    direct = direct_gradients(lv.unroll(transformer(), TOKENS), TARGETS, named("per_loop+penalty", penalty=0.5))
    assert list(direct) == ["per_loop", "penalty"]
    # d/dH of 0.5 · mean over K = 4 loops, 8 tokens and 8 channels of H².
    trace = lv.unroll(transformer(), TOKENS)
    direct = direct_gradients(trace, TARGETS, named("per_loop+penalty", penalty=0.5))
    torch.testing.assert_close(direct["penalty"][2], 2 * 0.5 * trace.states[3] / (4 * 8 * 8))


def test_a_step_that_cuts_the_gradient_sends_nothing_back() -> None:
    cut = looped(lambda H: 2 * H.detach())
    direct = direct_gradients(lv.unroll(cut, TOKENS), TARGETS, named("per_loop"))
    assert not any(g.any() for g in indirect_gradients(lv.unroll(cut, TOKENS), direct))


def test_radial_gradient_of_a_penalty_is_all_radial() -> None:
    trace = lv.unroll(looped(radial_step(1.0, 0.5), start=2.0), TOKENS, loops=2)
    g = direct_gradients(trace, TARGETS, named("per_loop+penalty", penalty=0.1))["penalty"][1]
    found = radial_gradient(g, trace.states[2], torch.float64)
    assert found.fraction == pytest.approx(1.0)
    # dP/d log s = 2·λ·s²/K at every token alike, s = 3: summed over the 8 tokens of a mean over 8.
    assert found.signal == pytest.approx(2 * 0.1 * 3.0**2 / 2)


def test_signs_and_fractions_of_hand_made_gradients() -> None:
    state = torch.tensor([[[3.0, 4.0]]], dtype=torch.float64)
    inward = radial_gradient(-state, state, torch.float64)
    assert (inward.signal, inward.fraction) == (pytest.approx(-25.0), pytest.approx(1.0))
    turning = radial_gradient(torch.tensor([[[-4.0, 3.0]]], dtype=torch.float64), state, torch.float64)
    assert (turning.signal, turning.fraction, turning.reading) == (0.0, 0.0, "at the floor")
    slanted = radial_gradient(torch.tensor([[[1.0, 0.0]]], dtype=torch.float64), state, torch.float64)
    assert slanted.fraction == pytest.approx(3 / 5)
    ratio = 0.6 / slanted.floor
    assert slanted.reading == f"above it by ×{ratio:.3g}"
    silent = radial_gradient(torch.zeros_like(state), state, torch.float64)
    assert (silent.signal, silent.fraction, silent.reading) == (0.0, None, "no gradient")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_blind_readout_is_at_the_floor_of_every_precision(dtype: torch.dtype, scale: float) -> None:
    module = lv.models.LoopedTransformer(lv.models.TransformerConfig(vocab_size=5, d_model=64, norm_eps=0.0))
    torch.nn.init.normal_(module.embedding.weight, std=scale)
    trace = lv.unroll(module.to(dtype).eval().looped(), TOKENS)
    g = direct_gradients(trace, TARGETS, named("per_loop"))["per_loop"][3]
    found = radial_gradient(g, trace.states[4], working_dtype(trace))
    assert found.reading == "at the floor"
    assert found.fraction < torch.finfo(dtype).eps  # far below the 1/√d = 0.125 of any other direction


def test_working_dtype_is_the_coarsest() -> None:
    trace = lv.unroll(looped(radial_step(1.0, 0.1), dtype=torch.float32), TOKENS)
    assert working_dtype(trace) == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert working_dtype(trace) == torch.bfloat16
    half_weights = dataclasses.replace(trace.model, module=torch.nn.Linear(D, D, dtype=torch.bfloat16))
    assert working_dtype(dataclasses.replace(trace, model=half_weights)) == torch.bfloat16


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (
            lambda trace, targets: torch.ones(()),
            "the objective returned a Tensor; expected loopverify.objectives.Terms",
        ),
        (lambda trace, targets: Terms({}), "with at least one named part"),
        (lambda trace, targets: Terms({"all": trace.states[1]}), r"term 'all' of the objective is \(2, 4, 8\)"),
        (lambda trace, targets: Terms({"loss": 1.0}), "term 'loss' of the objective is float; expected a scalar"),
    ],
)
def test_objectives_of_another_form_are_refused(objective: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        direct_gradients(lv.unroll(looped(radial_step(1.0, 0.1)), TOKENS), TARGETS, objective)


def test_a_constant_term_sends_no_gradient() -> None:
    def objective(trace: lv.Trace, targets: Tensor) -> Terms:
        return Terms({"constant": torch.tensor(math.pi)})

    found = direct_gradients(lv.unroll(looped(radial_step(1.0, 0.1)), TOKENS), TARGETS, objective)
    assert not any(g.any() for g in found["constant"])
