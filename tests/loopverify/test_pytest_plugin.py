"""The plugin in a separate pytest: its cost, and the conformance suite through its two pytest interfaces."""

from __future__ import annotations

import pytest

import loopverify as lv
from loopverify.checks import CHECKS
from loopverify.models import LoopedTransformer, TransformerConfig

pytest_plugins = ["pytester"]

MODELS = """
import torch
from torch import nn

def gru():
    torch.manual_seed(0)
    return Gru().looped()

class Gru(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(11, width), nn.GRUCell(width, width), nn.Linear(width, 11)

    def embed(self, tokens):
        state = self.embedding(tokens)
        return state, state

    def step(self, state, context, loop):
        return self.cell(context.flatten(0, 1), state.flatten(0, 1)).view_as(state)

    def readout(self, state, context, loop, loops):
        return self.head(state)

    def looped(self):
        import loopverify as lv
        return lv.Looped(embed=self.embed, step=self.step, readout=self.readout, trained_loops=2, name="gru")

class Forgetful(Gru):
    def step(self, state, context, loop):
        return super().step(state.detach(), context, loop)

def cut():
    torch.manual_seed(0)
    return Forgetful().looped()

def reference():
    from loopverify.models import LoopedTransformer, TransformerConfig
    return LoopedTransformer(TransformerConfig(vocab_size=11, d_model=8, layers=1, heads=1, d_ff=8))

def needs_a_width(width):
    return Gru(width).looped()
"""


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """An inner pytest unloads modules that it imported; torch cannot be imported twice, so import all of it now."""
    lv.check_looped_model(LoopedTransformer(TransformerConfig(vocab_size=5, d_model=8, layers=1, heads=1, d_ff=8)))


def conformance(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(models=MODELS)
    return pytester.runpytest_inprocess("--pyargs", "loopverify.checks", "-rs", *arguments)


def test_a_pytest_that_merely_has_the_plugin_imports_no_torch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_what_is_loaded():
            assert "loopverify.pytest_plugin" in sys.modules
            heavy = {"torch", "numpy", "scipy", "loopverify.looped", "loopverify.checks"}
            assert not heavy & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_option_is_explained_in_the_help(pytester: pytest.Pytester) -> None:
    pytester.runpytest_inprocess("--help").stdout.fnmatch_lines(["*--looped-model=PKG.MOD:FACTORY*"])


def test_without_a_model_the_suite_is_skipped_and_says_what_to_pass(pytester: pytest.Pytester) -> None:
    result = conformance(pytester)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no model to check; pass --looped-model pkg.mod:factory*"])


def test_a_model_by_name_meets_every_check(pytester: pytest.Pytester) -> None:
    result = conformance(pytester, "--looped-model", "models:gru")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] + outcomes["skipped"] == len(CHECKS)
    assert "failed" not in outcomes
    result.stdout.fnmatch_lines(["*the model declares no decode; give Looped(decode=...) to check*"])


def test_ids_read_like_the_model_and_the_check_so_that_k_selects(pytester: pytest.Pytester) -> None:
    models = ("--looped-model", "models:gru", "--looped-model", "models:reference")
    result = conformance(pytester, *models, "-v", "-k", "causality or (gru and resume)")
    result.assert_outcomes(passed=3, deselected=2 * len(CHECKS) - 3)
    result.stdout.fnmatch_lines(
        [
            "*test_conformance?gru-resume? PASSED*",
            "*test_conformance?gru-causality? PASSED*",
            "*test_conformance?looped_transformer/rmsnorm-causality? PASSED*",
        ]
    )


def test_a_fault_fails_its_test_with_the_words_of_the_check(pytester: pytest.Pytester) -> None:
    result = conformance(pytester, "--looped-model", "models:cut", "-k", "state_gradient or causality")
    result.assert_outcomes(passed=1, failed=1, deselected=len(CHECKS) - 2)
    result.stdout.fnmatch_lines(["*ConformanceError: state_gradient: no gradient flows from H_2 back to H_1*"])


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("models", "model 'models'; expected 'package.module:factory'*"),
        ("models:needs_a_width", "*called without arguments, raised TypeError: *missing 1 required*"),
    ],
)
def test_a_wrong_reference_is_a_usage_error_in_words(pytester: pytest.Pytester, reference: str, words: str) -> None:
    result = conformance(pytester, "--looped-model", reference)
    assert result.ret != 0
    assert "passed" not in result.parseoutcomes()
    text = "\n".join([*result.outlines, *result.errlines])
    pytest.LineMatcher(text.splitlines()).fnmatch_lines([f"*{words}"])
    assert "Traceback" not in text


DECORATED = """
    import loopverify as lv
    from models import cut, gru

    REASONS = {"state_gradient": "trains one loop at a time", "causality": "seen to fail last year"}

    @lv.parametrize_with_checks([gru()])
    def test_clean(model, check):
        check(model)

    @lv.parametrize_with_checks([cut()], expected_failures=REASONS)
    def test_known(model, check):
        if check.id in REASONS:
            check(model)
"""


def test_the_decorator_maps_skips_and_expectations_to_those_of_pytest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(models=MODELS, test_mine=DECORATED)
    result = pytester.runpytest_inprocess("-rsxX")
    outcomes = result.parseoutcomes()
    assert outcomes["xfailed"] == 1
    assert outcomes["xpassed"] == 1
    assert "failed" not in outcomes
    assert sum(outcomes.values()) == 2 * len(CHECKS)
    result.stdout.fnmatch_lines(
        [
            "SKIPPED *the model declares no paths; give Looped(paths=...) to check",
            "XFAIL *test_known?gru-state_gradient? - trains one loop at a time*",
            "XPASS *test_known?gru-causality? - seen to fail last year*",
        ]
    )


def test_an_expectation_that_no_longer_holds_fails_under_strict_xfail(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(models=MODELS, test_mine=DECORATED)
    pytester.makeini("[pytest]\nxfail_strict = true")
    result = pytester.runpytest_inprocess("-k", "known and causality")
    result.assert_outcomes(failed=1, deselected=2 * len(CHECKS) - 1)
    result.stdout.fnmatch_lines(["*XPASS(strict)*"])


def test_a_crash_is_not_taken_for_an_expected_failure(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        models=MODELS,
        test_mine="""
        import loopverify as lv
        from models import Gru

        class Broken(Gru):
            def readout(self, state, context, loop, loops):
                raise KeyError("head")

        @lv.parametrize_with_checks([Broken().looped()], expected_failures={"depth_use": "flat"})
        def test_mine(model, check):
            check(model)
        """,
    )
    result = pytester.runpytest_inprocess("-k", "depth_use")
    result.assert_outcomes(failed=1, deselected=len(CHECKS) - 1)
    result.stdout.fnmatch_lines(["*KeyError: 'head'*"])


def test_models_with_the_same_name_get_numbers_and_no_models_are_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        models=MODELS,
        test_mine="""
        import pytest
        import loopverify as lv
        from loopverify.errors import InputError
        from models import gru

        @lv.parametrize_with_checks([gru(), gru()])
        def test_mine(model, check, request):
            assert request.node.name.startswith(("test_mine[gru1-", "test_mine[gru2-"))

        def test_none():
            with pytest.raises(InputError, match="no models to check; expected at least one"):
                lv.parametrize_with_checks([])
        """,
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=2 * len(CHECKS) + 1)
