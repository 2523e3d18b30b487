"""Counts the random blocks of a session, reports them, and fails a complete run that drew too few.

A property that passes on few or no examples is no evidence, so their number is part of the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from properties.blocks import GENERATED

LEAST_BLOCKS = 5_000
"""What a complete run of this folder must draw."""

HERE = Path(__file__).parent
_COMPLETE = pytest.StashKey[bool]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """A run is complete when all of this folder's test files were collected whole and nothing was deselected."""
    chosen = {item.path for item in session.items}
    narrowed = session.config.stash.get(_COMPLETE, True) is False or any("::" in arg for arg in session.config.args)
    session.config.stash[_COMPLETE] = not narrowed and chosen.issuperset(HERE.glob("test_*.py"))


def pytest_deselected(items: list[pytest.Item]) -> None:
    if any(item.path.parent == HERE for item in items):
        items[0].config.stash[_COMPLETE] = False


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist; the controller sums over workers
        session.config.workeroutput["generated"] = dict(GENERATED)
    elif exitstatus == pytest.ExitCode.OK and _too_few(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    GENERATED.update(getattr(node, "workeroutput", {}).get("generated", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if GENERATED:
        terminalreporter.write_line(
            f"properties: {GENERATED['blocks']:,} random blocks, {GENERATED['readouts']:,} random readouts"
        )
    if _too_few(config):
        terminalreporter.write_line(
            f"properties: a complete run must draw at least {LEAST_BLOCKS:,} random blocks; "
            "is a strategy narrower than before?",
            red=True,
        )


def _too_few(config: pytest.Config) -> bool:
    collect_only = bool(config.getoption("collectonly"))
    return config.stash.get(_COMPLETE, False) and not collect_only and GENERATED["blocks"] < LEAST_BLOCKS
