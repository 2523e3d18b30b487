"""pytest hooks of loopverify.

Every pytest run imports this module wherever loopverify is installed, so it imports nothing heavy itself.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

from loopverify.comparing.files import Collected

if TYPE_CHECKING:
    from loopverify.comparing.guard import LoopedRegression

_COLLECTED = pytest.StashKey[Collected]()
_SENT = "loopverify_collected"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("loopverify", "verification of looped models")
    group.addoption(
        "--looped-regen",
        action="store_true",
        help="rewrite the stored traces of looped_regression; a test whose trace is rewritten still fails",
    )
    group.addoption(
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
    from loopverify.checks.conformance import cases
    from loopverify.checks.loading import load_model
    from loopverify.errors import InputError

    try:
        return cases([load_model(reference, config.invocation_params.dir) for reference in references])
    except InputError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.fixture
def looped_regression(request: pytest.FixtureRequest) -> LoopedRegression:
    """Guards a looped model by a trace stored next to the test: looped_regression.check(model, tokens, loops=4)."""
    from loopverify.comparing.guard import LoopedRegression

    return LoopedRegression(
        request.path,
        _test_name(request.node),
        regenerate=request.config.getoption("--looped-regen"),
        command=f"pytest {shlex.quote(request.node.nodeid)}",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_COLLECTED] = Collected()


def pytest_itemcollected(item: pytest.Item) -> None:
    item.config.stash[_COLLECTED].add(item.path, _test_name(item))


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        item.config.stash[_COLLECTED].leave_out(item.path)


def pytest_collection_finish(session: pytest.Session) -> None:
    for argument in session.config.args:
        path, selected, _ = argument.partition("::")
        if selected:
            session.config.stash[_COLLECTED].leave_out(session.config.invocation_params.dir / path)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker process of pytest-xdist
        session.config.workeroutput[_SENT] = session.config.stash[_COLLECTED].to_plain()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    sent = getattr(node, "workeroutput", {}).get(_SENT)
    if sent is not None:
        node.config.stash[_COLLECTED].merge(Collected(**sent))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("lf", False):  # --last-failed skips tests without calling pytest_deselected
        return
    for path in config.stash[_COLLECTED].stale():
        terminalreporter.write_line(f"stale: {path} is the stored trace of a test that no longer exists; delete it")


def _test_name(item: pytest.Item) -> str:
    """The test within its module, such as 'TestA::test_b[c]'. (pytest-xdist may append a group to node ids.)"""
    outer = (pytest.Session, pytest.Directory, pytest.File)
    return "::".join(node.name for node in item.listchain() if not isinstance(node, outer))
