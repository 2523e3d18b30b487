"""pytest hooks of loopverify. Loaded at every start of pytest wherever loopverify is installed: nothing heavy here."""

from __future__ import annotations

import pytest

__all__ = ["pytest_addoption", "pytest_generate_tests"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("loopverify", "verification of looped models").addoption(
        "--looped-model",
        metavar="PKG.MOD:FACTORY",
        action="append",
        default=[],
        help="run the conformance suite, `--pyargs loopverify.checks`, on the model that this factory returns; "
        "may be given several times",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not {"conformance_model", "conformance_check"} <= set(metafunc.fixturenames):
        return
    references = metafunc.config.getoption("--looped-model")
    if references:
        cases = _cases(references, metafunc.config)
    else:
        reason = "no model to check; pass --looped-model pkg.mod:factory"
        cases = [pytest.param(None, None, id="no-model", marks=pytest.mark.skip(reason=reason))]
    metafunc.parametrize(("conformance_model", "conformance_check"), cases)


def _cases(references: list[str], config: pytest.Config) -> list[object]:
    from loopverify.checks.loading import load_model
    from loopverify.checks.suite import cases
    from loopverify.errors import InputError

    try:
        return cases([load_model(reference, config.invocation_params.dir) for reference in references])
    except InputError as error:
        raise pytest.UsageError(str(error)) from error
