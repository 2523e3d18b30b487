"""The interfaces of the suite: statuses, expected failures, traits, and messages of checks that do not apply."""

from __future__ import annotations

import json
import unittest
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import loopverify as lv
from loopverify.checks import CHECKS, TRAITS, CheckResult, ConformanceError, NotApplicableError
from loopverify.checks.traits import GROWTH
from loopverify.errors import InputError
from loopverify.models import LoopedTransformer, TransformerConfig
from tests.loopverify.checks.clean import CachedTransformer, build
from tests.loopverify.checks.saboteurs import SABOTEURS

PLANTED = {saboteur.name: saboteur for saboteur in SABOTEURS}


def by_id(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {result.id: result for result in results}


def sabotaged(name: str, *traits: str) -> lv.Looped:
    model = PLANTED[name].build(0)
    return replace(model, declares=model.declares | set(traits))


def test_every_result_of_a_clean_model_is_returned_in_the_order_of_the_checks() -> None:
    model = build("gru", 0)
    results = lv.check_looped_model(model)
    assert [result.id for result in results] == [check.id for check in lv.checks_for(model)] == list(CHECKS)
    assert {result.status for result in results} == {"passed", "skipped"}
    assert {result.model for result in results} == {"gru"}


def test_a_module_is_adapted_on_the_way() -> None:
    torch.manual_seed(0)
    module = LoopedTransformer(TransformerConfig(vocab_size=11, d_model=8, layers=1, heads=1, d_ff=8))
    assert by_id(lv.check_looped_model(module))["causality"].status == "passed"
    with pytest.raises(InputError, match="cannot adapt Linear"):
        lv.check_looped_model(nn.Linear(2, 2))


def test_all_failures_are_raised_at_once_with_their_words() -> None:
    with pytest.raises(ConformanceError) as caught:
        lv.check_looped_model(sabotaged("CappedLoops"))
    assert [result.id for result in caught.value.results] == ["loops_executed", "parameter_gradient"]
    text = str(caught.value)
    assert text.startswith(f"CappedLoops: 2 of {len(CHECKS)} checks do not hold\n")
    assert "loops_executed: not all of 6 loops run the same block: loop 5 calls 1 modules" in text
    assert "Likely cause: the number of loops is capped by the configuration, or a loop is skipped or run twice" in text
    assert "parameter_gradient: no gradient reaches scale.weight, scale.bias (2 against a limit of 0 param" in text
    assert isinstance(caught.value, AssertionError)


def test_an_expected_failure_is_xfailed_and_one_that_passes_is_xpassed() -> None:
    model = sabotaged("IgnoresTheMask")
    reasons = {"mask_influence": "one row at a time"}
    results = by_id(lv.check_looped_model(model, expected_failures=reasons))
    assert results["mask_influence"].status == "xfailed"
    assert results["mask_influence"].message.startswith("expected (one row at a time): masking the first 2 tokens")
    stale = {**reasons, "causality": "old bug"}
    returned = by_id(lv.check_looped_model(model, expected_failures=stale, on_fail="return"))
    assert returned["causality"].status == "xpassed"
    with pytest.raises(ConformanceError, match=r"causality: expected to fail \(old bug\), but passes.*Remove it from"):
        lv.check_looped_model(model, expected_failures=stale)


def test_expecting_the_failure_of_a_check_that_does_not_apply_leaves_it_skipped() -> None:
    results = lv.check_looped_model(build("gru", 0), expected_failures={"cached_decode": "no cache yet"})
    assert by_id(results)["cached_decode"].status == "skipped"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"expected_failures": {"causalty": "typo"}},
            "unknown check 'causalty'; expected one of: trajectory_order, step_reads_state",
        ),
        ({"expected_failures": {"causality": " "}}, r"expected_failures\['causality'\] is ' '; expected the reason"),
        *(
            (
                {"expected_failures": value},
                rf"expected_failures is a {kind}; expected a mapping of the id of a check to",
            )
            for value, kind in [(["causality"], "list"), ("causality", "str"), (3, "int")]
        ),
        ({"on_fail": "warn"}, "unknown on_fail 'warn'; expected one of: raise, return"),
    ],
)
def test_wrong_arguments_are_refused_with_what_was_expected(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        lv.check_looped_model(build("gru", 0), **arguments)


@pytest.mark.parametrize("models", [build("gru", 0), nn.Sequential(nn.Linear(2, 2)), None, 3])
def test_one_model_is_no_sequence_of_models(models: object) -> None:
    kind = type(models).__name__
    with pytest.raises(InputError, match=rf"models is a {kind}; expected a sequence of models, such as \[model\]"):
        lv.parametrize_with_checks(models)


def test_a_check_is_called_with_any_model_that_the_suite_takes() -> None:
    module = lv.models.LoopedTransformer(lv.models.TransformerConfig(vocab_size=17, d_model=16, d_ff=32))
    check = next(check for check in lv.checks_for(module) if check.id == "causality")
    check(module)
    assert check.run(module).status == "passed"
    with pytest.raises(InputError, match="adapt got a NoneType"):
        check(None)


def test_a_crash_is_an_error_of_its_check_and_no_other() -> None:
    class Fragile(CachedTransformer):
        def embed_masked(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, object]:
            raise ZeroDivisionError("masks are hard")

    torch.manual_seed(0)
    results = by_id(lv.check_looped_model(Fragile().looped(), on_fail="return"))
    wrong = {name for name, result in results.items() if result.status == "error"}
    assert wrong == {"padding_invariance", "mask_influence"}
    assert results["mask_influence"].message == "ZeroDivisionError inside the check: masks are hard"
    with pytest.raises(ConformanceError, match=r"2 of .* checks do not hold"):
        lv.check_looped_model(Fragile().looped())
    with pytest.raises(ZeroDivisionError):  # a test runner gets the exception itself, with its traceback
        CHECKS["mask_influence"](Fragile().looped())


def test_a_check_called_on_a_model_raises_for_a_test_runner() -> None:
    CHECKS["causality"](build("gru", 0))
    with pytest.raises(ConformanceError, match="causality: the logits of exit 1 at position 0 differ"):
        CHECKS["causality"](sabotaged("SeesTheFuture"))
    with pytest.raises(NotApplicableError, match="the model declares no decode; give Looped") as caught:
        CHECKS["cached_decode"](build("gru", 0))
    assert isinstance(caught.value, unittest.SkipTest)


def test_a_coarse_dtype_is_refused_and_not_judged() -> None:
    torch.manual_seed(0)
    model = LoopedTransformer(TransformerConfig(vocab_size=11, d_model=16)).bfloat16().looped()
    result = CHECKS["causality"].run(model)
    assert result.status == "skipped"
    assert "rounding in torch.bfloat16 alone may move the result by" in result.message
    assert "check the model in float32" in result.message


def test_models_of_plain_functions_are_checked_as_far_as_they_can_be() -> None:
    table = torch.linspace(-1, 1, 77).view(11, 7).sin()
    model = lv.Looped(
        embed=lambda tokens: (table[tokens], None),
        step=lambda state, context, loop: state + state.roll(1, -1).tanh(),
        readout=lambda state, context, loop, loops: state @ table.T,
        trained_loops=2,
    )
    results = by_id(lv.check_looped_model(model))
    assert results["causality"].status == results["resume"].status == "passed"
    assert "no nn.Module is called inside step" in results["loops_executed"].message
    assert "name the module that owns them in Looped(module=...)" in results["parameter_gradient"].message


# --- traits

EXCUSED = {
    "random_state": "RandomInitialState",
    "sampled_depth": "SamplesItsDepth",
    "uneven_loops": "CappedLoops",
    "context_memory": "KeepsEarlierLoopsInTheContext",
    "loop_readout": "TemperatureByLoop",
    "contextual_readout": "NormsOverPositions",
    "labels_mix_exits": "MixesExitsWithLabels",
    "non_causal": "SeesTheFuture",
    "batch_dependent": "CentersOverTheBatch",
    "truncated_gradient": "DetachedScale",
    "unused_parameters": "OneLayerHardCoded",
    "last_loop_cache": "KeepsTheLastLoop",
    "amplified_scale": "AddsTheResidualAgain",
}


def test_every_trait_is_decided_by_one_check_and_has_a_model_that_shows_it() -> None:
    decided = [check.decides for check in CHECKS.values() if check.decides]
    assert sorted(decided) == sorted(set(TRAITS) - set(GROWTH)) == sorted(EXCUSED)


@pytest.mark.parametrize(("trait", "name"), EXCUSED.items())
def test_a_declared_trait_explains_the_failure_that_it_names(trait: str, name: str) -> None:
    check = next(check for check in CHECKS.values() if check.decides == trait)
    assert check.run(sabotaged(name)).status == "failed"
    result = check.run(sabotaged(name, trait))
    assert result.status == "skipped"
    assert result.message.startswith(f"declared '{trait}' ({TRAITS[trait]}), which explains it: ")
    assert result.value is not None
    assert result.limit is not None


@pytest.mark.parametrize("trait", EXCUSED)
def test_a_trait_that_a_model_does_not_show_is_contradicted(trait: str) -> None:
    check = next(check for check in CHECKS.values() if check.decides == trait)
    model = build("rmsnorm", 0)
    assert check.run(model).status == "passed"
    result = check.run(replace(model, declares=frozenset({trait})))
    assert result.status == "failed"
    assert f"the model declares '{trait}'" in result.message
    assert f"Remedy: remove '{trait}' from declares." in result.message


def test_a_random_state_is_named_once_and_what_it_disturbs_points_there() -> None:
    results = by_id(lv.check_looped_model(sabotaged("RandomInitialState"), on_fail="return"))
    assert {name for name, result in results.items() if result.status in ("failed", "error")} == {"determinism"}
    for disturbed in ("batch_invariance", "cached_decode", "last_loop_cache", "paths_agree"):
        assert results[disturbed].status == "skipped"
        assert "see checks determinism and sampled_depth" in results[disturbed].message
    declared = by_id(lv.check_looped_model(sabotaged("RandomInitialState", "random_state")))
    assert declared["determinism"].message.startswith("declared 'random_state'")


@pytest.mark.parametrize(
    ("name", "named"), [("AddsInPlace", {"state_memory"}), ("CutsTheRecurrence", {"state_gradient"})]
)
def test_a_fault_that_leaves_nothing_to_look_at_is_named_once(name: str, named: set[str]) -> None:
    results = by_id(lv.check_looped_model(sabotaged(name), on_fail="return"))
    assert {name for name, result in results.items() if result.status in ("failed", "error")} == named
    assert f"see check {min(named)}: " in results["optimizer_step"].message


@pytest.mark.parametrize(
    ("name", "disturbed", "words"),
    [
        (
            "NanInTheHead",
            "optimizer_step",
            "not tested, see check logits_form: exit 1 returns logits that are not finite",
        ),
        ("HandsOnATuple", "depth_use", "not tested, see check logits_form: exit 1 returns tuple, expected"),
        ("DividesByZero", "overshoot", "no valid trajectory, see check trajectory_order: H_2 is not finite"),
        ("CastsAndStays", "resume", "no valid trajectory, see check state_dtype: H_2 is torch.bfloat16 on cpu"),
        ("IgnoresTheMask", "padding_invariance", "not tested, see check mask_influence: masking the first 2 tokens"),
    ],
)
def test_a_check_that_could_only_mislead_points_to_the_one_that_names_the_fault(
    name: str, disturbed: str, words: str
) -> None:
    result = CHECKS[disturbed].run(sabotaged(name))
    assert result.status == "skipped"
    assert result.message.startswith(words)


def test_a_check_that_another_presupposes_and_that_crashes_says_so_itself_and_only_once() -> None:
    class OneTokenIsTooFew(CachedTransformer):
        def step(self, state: Tensor, context: object, loop: int) -> Tensor:
            if state.shape[1] == 1 and loop > 1:
                raise ZeroDivisionError("no neighbors")
            return super().step(state, context, loop)

    torch.manual_seed(0)
    model = replace(OneTokenIsTooFew().looped(), decode=None, cache_slots=None)
    results = lv.check_looped_model(model, on_fail="return")
    assert [result.id for result in results if result.status not in ("passed", "skipped")] == ["logits_form"]


def test_a_growth_law_that_holds_is_confirmed() -> None:
    result = CHECKS["growth_law"].run(sabotaged("ClaimsSquareRootGrowth"))
    assert result.status == "failed"
    honest = replace(PLANTED["ClaimsSquareRootGrowth"].build(0), declares=frozenset({"growth_linear"}))
    assert CHECKS["growth_law"].run(honest).status == "passed"


def test_an_unknown_trait_is_an_error_that_lists_the_known_ones() -> None:
    model = replace(build("gru", 0), declares=frozenset({"stochastic"}))
    words = "unknown trait 'stochastic'; expected one of: random_state, sampled_depth"
    with pytest.raises(InputError, match=words):
        lv.check_looped_model(model)
    with pytest.raises(InputError, match=words):
        CHECKS["causality"](model)


# --- records


def test_a_result_is_a_record_with_value_limit_margin_and_provenance() -> None:
    result = by_id(lv.check_looped_model(build("float64", 0)))["residual_identity"]
    assert (result.dtype, result.device, result.seed, result.unit) == ("float64", "cpu", 0, "relative")
    assert result.margin == pytest.approx(result.limit - result.value)
    record = json.loads(json.dumps(result.to_dict()))
    assert record["margin"] == result.margin
    assert record["status"] == "passed"
    with pytest.raises(AttributeError):
        result.status = "failed"  # type: ignore[misc]


def test_the_margin_of_a_lower_bound_counts_upward() -> None:
    result = by_id(lv.check_looped_model(build("gru", 0)))["depth_use"]
    assert result.relation == ">="
    assert result.margin == result.value - result.limit > 0


def test_values_that_are_not_finite_are_written_as_words() -> None:
    result = CheckResult(id="x", model="m", status="failed", message="", value=float("nan"), limit=1.0)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["value"] == "nan"
