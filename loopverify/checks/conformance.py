"""The conformance suite: the list of checks, and two of three ways to run it (the third is the pytest plugin)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from loopverify.adapters import adapt
from loopverify.checks import readout, recurrence, sequence
from loopverify.checks.check import Check
from loopverify.checks.result import CheckResult, ConformanceError
from loopverify.checks.traits import known_traits
from loopverify.errors import InputError, unknown
from loopverify.looped import Looped

__all__ = ["CHECKS", "cases", "check_looped_model", "checks_for", "parametrize_with_checks"]

CHECKS: Mapping[str, Check] = {
    entry.id: entry
    for theme in (*recurrence.THEMES, *sequence.THEMES, *readout.THEMES)
    for entry in vars(theme).values()
    if isinstance(entry, Check) and entry.function.__module__ == theme.__name__  # not one imported for `presupposes`
}
"""Every check by its id, theme by theme."""


def checks_for(model: Looped | nn.Module) -> Iterator[Check]:
    """The checks of a model, each to be called with it. Those that do not apply are skipped when they run.

    Raises:
        InputError: the model is neither a `Looped` nor of known architecture, or declares an unknown trait.
    """
    known_traits(adapt(model).declares)
    yield from CHECKS.values()


def check_looped_model(
    model: Looped | nn.Module,
    expected_failures: Mapping[str, str] | None = None,
    on_fail: Literal["raise", "return"] = "raise",
) -> list[CheckResult]:
    """Run the conformance suite on a model, which is left unchanged.

    Args:
        model: a `Looped`, or a module that `loopverify.adapt` recognizes.
        expected_failures: check id -> the reason why it is known to fail. Such a check ends as 'xfailed', or as
            'xpassed' if it passes.
        on_fail: 'return' gives all results; 'raise' raises when one is 'failed', 'error' or 'xpassed' (an expectation
            that no longer holds).

    Raises:
        ConformanceError: with on_fail='raise', naming every failure at once.
        InputError: an unknown check id, an expected failure without a reason, an unknown trait or on_fail.
    """
    if on_fail not in ("raise", "return"):
        raise unknown("on_fail", on_fail, ("raise", "return"))
    expected = _reasons(expected_failures)
    looped = adapt(model)
    results = [_expect(check.run(looped), expected) for check in checks_for(looped)]
    wrong = [result for result in results if result.status in ("failed", "error", "xpassed")]
    if wrong and on_fail == "raise":
        lines = "\n".join(f"  {result}" for result in wrong)
        raise ConformanceError(f"{looped.name}: {len(wrong)} of {len(results)} checks do not hold\n{lines}", wrong)
    return results


def _reasons(expected_failures: Mapping[str, str] | None) -> Mapping[str, str]:
    expected = {} if expected_failures is None else expected_failures
    if not isinstance(expected, Mapping):
        raise InputError(
            f"expected_failures is a {type(expected).__name__}; expected a mapping of the id of a check to the reason "
            "why it fails, such as {'state_memory': 'issue 7'}"
        )
    for name, reason in expected.items():
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
        if not isinstance(reason, str) or not reason.strip():
            raise InputError(f"expected_failures[{name!r}] is {reason!r}; expected the reason why it fails, as text")
    return expected


def _expect(result: CheckResult, expected: Mapping[str, str]) -> CheckResult:
    if result.id not in expected:
        return result
    reason = expected[result.id]
    if result.status == "failed":
        return replace(result, status="xfailed", message=f"expected ({reason}): {result.message}")
    if result.status == "passed":
        message = f"expected to fail ({reason}), but passes: {result.message}. Remove it from expected_failures."
        return replace(result, status="xpassed", message=message)
    return result


def parametrize_with_checks(
    models: Sequence[Looped | nn.Module], expected_failures: Mapping[str, str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate `def test_mine(model, check): check(model)` so that pytest runs it for every model and every check.

    Test ids read 'model-check', so that -k selects either. A check that does not apply is skipped; one in
    `expected_failures` (id -> why) is marked xfail, as strict as pytest's `xfail_strict` requires.

    Raises:
        InputError: no models, or for the reasons given at `check_looped_model`.
    """
    import pytest

    return pytest.mark.parametrize(("model", "check"), cases(models, expected_failures))


def cases(models: Sequence[Looped | nn.Module], expected_failures: Mapping[str, str] | None = None) -> list[Any]:
    """Every model with every check as pytest parameters (model, check). Raises as `parametrize_with_checks`."""
    import pytest

    expected = _reasons(expected_failures)
    if isinstance(models, (Looped, nn.Module)) or not isinstance(models, Iterable):
        raise InputError(f"models is a {type(models).__name__}; expected a sequence of models, such as [model]")
    looped = [adapt(model) for model in models]
    if not looped:
        raise InputError("no models to check; expected at least one")
    return [
        pytest.param(
            model,
            check,
            id=f"{name}-{check.id}",
            marks=pytest.mark.xfail(reason=expected[check.id], raises=ConformanceError) if check.id in expected else (),
        )
        for name, model in zip(_distinct([model.name for model in looped]), looped, strict=True)
        for check in checks_for(model)
    ]


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, numbered where one occurs more than once."""
    return [
        f"{name}{names[:index].count(name) + 1}" if names.count(name) > 1 else name for index, name in enumerate(names)
    ]
