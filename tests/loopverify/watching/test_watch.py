"""Watch: metrics of states written by hand, and its messages about models that drift and that do not."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.watching.watch import DriftWarning, Watch

U = torch.tensor([1.0, -1.0, 1.0, -1.0])  # rms 1
V = torch.tensor([1.0, 1.0, -1.0, -1.0])  # rms 1, orthogonal to U


def states(*tokens: Tensor) -> list[Tensor]:
    return [token.expand(2, 3, 4).clone() for token in tokens]


def test_a_look_measures_scale_radial_part_and_turn() -> None:
    seen = Watch().look(7, states(2 * U, 5 * U, 5 * U + 12 * V))
    assert seen.step == 7
    assert [norms.mean for norms in seen.rms] == pytest.approx([2, 5, 13])
    assert [update.a_rad for update in seen.updates] == pytest.approx([3, 0], abs=1e-6)
    assert [update.b_perp for update in seen.updates] == pytest.approx([0, 12], abs=1e-6)
    assert seen.moved == pytest.approx((3 / 2, 12 / 5))
    assert (seen.drift, seen.largest, seen.findings) == (1, 17, ())
    scalars = seen.scalars()
    assert scalars["rms@2"] == pytest.approx(13)
    assert scalars["p99@0"] == pytest.approx(2)
    assert scalars["turn@2"] == pytest.approx((2 * (1 - 5 / 13)) ** 0.5)  # the chord of an angle with cos 5/13
    assert json.loads(json.dumps(seen.to_dict()))["updates"][0]["growth"] == pytest.approx(3)


def test_growth_of_the_scale_is_warned_of_once_and_kept_in_every_look() -> None:
    watch = Watch(drift=4)
    assert watch.look(0, states(U, 2 * U)).findings == ()
    assert watch.look(1, states(U, 7.9 * U)).findings == ()
    with pytest.warns(DriftWarning, match=r"step 2: the rms of H_1 has grown ×4\.05, to 8\.1;"):
        seen = watch.look(2, states(U, 8.1 * U))
    assert seen.drift == pytest.approx(4.05)
    assert len(watch.look(3, states(U, 9 * U)).findings) == 1  # warnings are errors here: there was none


def test_a_model_begun_small_may_grow_to_what_a_normalized_read_shows() -> None:
    watch = Watch(drift=4)
    watch.look(0, states(0.01 * U, 0.02 * U))
    assert watch.look(1, states(0.01 * U, 3.9 * U)).drift == pytest.approx(3.9)
    with pytest.warns(DriftWarning, match=r"grown ×4\.1, to 4\.1"):
        watch.look(2, states(0.01 * U, 4.1 * U))


@pytest.mark.parametrize(("update", "warned"), [(0.0038, True), (0.0040, False)])
def test_a_loop_that_bfloat16_would_round_away_is_named(update: float, warned: bool) -> None:
    before = 64 * U
    after = (1 + update) * before
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Watch().look(0, states(U, before, after))
    # Half the spacing of bfloat16 above 64, 2^-8 = 0.0039 of it: rounding returns the state that was there.
    assert bool(caught) == warned
    assert torch.equal(after.bfloat16(), before.bfloat16()) == warned
    if warned:
        said = str(caught[0].message)
        assert "loop 2 moves the state by 0.0038 of its size, less than rounding to bfloat16 may" in said
        assert "rounding may hide most of what the loop adds" in said


def test_a_few_huge_tokens_do_not_stand_for_all() -> None:
    watch = Watch(drift=4)
    assert watch.look(0, states(U, U + V)).drift == 1
    before = states(U)[0]
    before[0, 0] *= 3000  # as the first token of many trained models
    seen = watch.look(1, [before, before + V])  # warnings are errors here: there was none
    assert seen.rms[0].mean > 500
    assert seen.moved == pytest.approx((1,))
    assert seen.drift == pytest.approx(1)


def test_tokens_at_zero_have_moved_by_all_of_their_update_or_by_nothing() -> None:
    zero = torch.zeros(2, 3, 4)
    assert Watch().look(0, [zero, zero + U]).moved == (float("inf"),)
    with pytest.warns(DriftWarning, match="loop 1 moves the state by 0 of its size"):
        assert Watch().look(0, [zero, zero]).moved == (0,)


def test_each_kind_of_finding_is_warned_of_once_at_the_caller_s_line() -> None:
    watch = Watch(drift=4)
    watch.look(0, states(U, 2 * U))
    with pytest.warns(DriftWarning, match="has grown"):
        watch.look(1, states(U, 8 * U))
    with pytest.warns(DriftWarning, match="largest entry of a state is 7000") as caught:
        watch.look(2, states(-7000 * U.abs(), 8 * U))  # of any state, and of either sign
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]


def test_an_overflow_at_the_first_look_is_not_what_drift_is_measured_against() -> None:
    watch = Watch(drift=4)
    with pytest.warns(DriftWarning, match="largest entry of a state is inf") as caught:
        watch.look(0, [state.half() for state in states(U, 1e6 * U)])
    assert len(caught) == 1
    assert watch.look(1, states(U, 2 * U)).drift == 1
    with pytest.warns(DriftWarning, match="has grown ×5, to 10"):
        watch.look(2, states(U, 10 * U))


def test_a_state_near_the_end_of_float16_is_warned_of() -> None:
    with pytest.warns(DriftWarning, match=r"the largest entry of a state is 7000; float16 ends at 65504"):
        Watch().look(0, states(U, 7000 * U))


def test_training_through_a_normalized_readout_drifts_unseen_and_a_penalty_holds_it() -> None:
    grown = {}
    for loss in ("per_loop", "per_loop+penalty"):
        torch.manual_seed(0)
        config = lv.models.TransformerConfig(vocab_size=17, d_model=16, d_ff=32, layers=1, heads=1, trained_loops=4)
        module = lv.models.LoopedTransformer(config)
        model, objective = module.looped(), lv.objectives.named(loss, penalty=0.1)
        optimizer = torch.optim.AdamW(module.parameters(), lr=5e-2)
        text, watch = torch.randint(17, (4, 64)), Watch(drift=1e6)
        for step in range(120):
            trace = lv.unroll(model, text[:, :-1], grad=True)
            optimizer.zero_grad()
            objective(trace, text[:, 1:]).total.backward()
            optimizer.step()
            seen = watch.look(step, trace)
        grown[loss] = seen.rms[-1].median
    assert grown["per_loop"] > 3 * grown["per_loop+penalty"]


def test_a_look_changes_nothing_and_takes_a_trace_as_it_takes_its_states() -> None:
    torch.manual_seed(0)
    module = lv.models.LoopedTransformer(lv.models.TransformerConfig(vocab_size=17, d_model=16, heads=1))
    trace = lv.unroll(module.looped(), torch.arange(12).view(2, 6), grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DriftWarning)
        assert Watch().look(0, trace) == Watch().look(0, [state.detach() for state in trace.states])
    trace.logits(4).sum().backward()  # nothing was changed in place, and no graph was freed
    assert module.embedding.weight.grad is not None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([U.expand(1, 1, 4)], "got 1 states; expected H_0..H_K of at least one loop"),
        ([U.expand(1, 1, 4), U], r"H_1 is torch.float32 \(4,\); expected a floating tensor of the shape of H_0"),
        ([U.expand(1, 1, 4), "H"], "H_1 is str; expected a floating tensor"),
        ([U, U], r"H_0 is torch.float32 \(4,\); expected a floating tensor of the shape of H_0, \(B, T, D\)"),
        (None, "states are None; expected a trace, or H_0..H_K"),
    ],
)
def test_what_is_no_run_of_states_is_refused(given: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Watch().look(0, given)


@pytest.mark.parametrize(("drift", "shown"), [(1, "1"), (float("nan"), "nan"), ("ten", "'ten'")])
def test_a_drift_that_is_no_growth_is_refused(drift: Any, shown: str) -> None:
    with pytest.raises(InputError, match=f"drift is {shown}; expected a number > 1"):
        Watch(drift=drift)
