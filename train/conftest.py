"""`pytest train` is the experiment runner: it trains what the selected claims need and prints the evidence."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from loopverify.claims import CLAIMS
from loopverify.cli.folder import runs_folder
from loopverify.errors import InputError, LoopverifyError
from train.data import DataSpec
from train.data.sources import open_source
from train.launch.watch import fleet_bars
from train.machine.hardware import use_device
from train.specification import preset
from train.store import RunStore
from train.study.study import Study
from train.study.verdicts import Verdicts

VERDICTS = pytest.StashKey[tuple[Verdicts, ...]]()
_HOPS = "hops"
"""The preset of the experiment on a task, and the keyword that selects it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("loopverify experiments")
    group.addoption("--preset", default="tiny", help="tiny (default), small, 44m, 129m, 1.4b or hops")
    group.addoption("--seeds", type=int, default=1, help="seeds per condition; 3 or more for evidence (default: 1)")
    group.addoption("--evidence", action="store_true", help="fail if the seeds are too few to test a claim")
    group.addoption("--runs", default="runs", help="folder of the run store (default: runs)")
    group.addoption("--device", default="auto", choices=["auto", "cpu", "cuda"])
    group.addoption("--data", help="auto, sotu, pydoc, wikitext103, or a text file or folder")
    group.addoption("--steps", type=int, help="optimizer steps per run (default: the preset's)")
    group.addoption("--workers", type=int, help="runs trained in parallel (default: as many as the cores allow)")


def pytest_configure(config: pytest.Config) -> None:
    try:
        studies = _studies(config)
        if (workers := config.getoption("--workers")) is not None and workers < 1:
            raise InputError(f"workers is {workers}; expected an integer >= 1")
        if config.getoption("--evidence"):
            studies[0].require_evidence(min(claim.alpha for claim in CLAIMS.values()))
    except LoopverifyError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[VERDICTS] = tuple(map(Verdicts, studies))


def _studies(config: pytest.Config) -> list[Study]:
    """The study of the chosen preset and, if `-k hops` is given at the default preset, that of the task.

    The task is part of no table: it would add a quarter of an hour to every `pytest train --seeds 3`.
    """
    source, steps = config.getoption("--data"), config.getoption("--steps")
    chosen = preset(config.getoption("--preset"), source=source, steps=steps)
    device, _ = use_device(config.getoption("--device"))
    store = RunStore(runs_folder(config.getoption("--runs")))
    study = Study(preset=chosen, seeds=config.getoption("--seeds"), store=store, device=device)
    selection = " ".join([config.option.keyword, *(Path(argument).name for argument in config.args)])
    with_task = chosen.name == "tiny" and _HOPS in selection
    return [study, replace(study, preset=preset(_HOPS, steps=steps))] if with_task else [study]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Report a text that cannot be opened as wrong use before anything is trained, not as a failure of every claim."""
    if session.config.option.collectonly:
        return
    data = session.config.stash[VERDICTS][0].study.preset.data
    try:
        if isinstance(data, DataSpec):
            open_source(data.source)
    except LoopverifyError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.fixture(scope="session")
def verdicts(request: pytest.FixtureRequest) -> tuple[Verdicts, ...]:
    """The studies of the selected claims, with every run trained or found in the store."""
    verdicts = request.config.stash[VERDICTS]
    claims = [item.callspec.params["claim"] for item in request.session.items if hasattr(item, "callspec")]
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        console = Console(file=sys.stdout, emoji=False)
        with fleet_bars(console) as bars:
            for one in verdicts:
                one.train(claims, bars, request.config.getoption("--workers"), bars.say)
    return verdicts


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for verdicts in config.stash.get(VERDICTS, ()):
        if not verdicts.judged:
            continue
        terminalreporter.section("claims")
        text, files = verdicts.report()
        terminalreporter.write_line(text)
        for file in files:
            terminalreporter.write_line(f"report: {file}")
