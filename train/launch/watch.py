"""Human-readable progress of training: a bar for one run, a bar for each run of a fleet, or plain lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from train.engine.events import Event, Report
from train.launch.fleet import Progress as FleetProgress
from train.specification import RunSpec
from train.store import Say

__all__ = ["FleetBars", "fleet_bars", "printer", "run_bar"]


def printer(console: Console) -> Say:
    """Prints messages on a console exactly as they are: no markup, no line breaks of its own."""
    return partial(console.print, markup=False, soft_wrap=True)


@contextmanager
def run_bar(console: Console, quiet: bool) -> Iterator[Report]:
    """A bar for one run, moved by the events it reports."""
    with _bars(console, quiet) as bars:
        yield partial(_show, bars, bars.add_task("training", total=None, summary=""))


@contextmanager
def fleet_bars(console: Console) -> Iterator[FleetBars]:
    """The progress of a fleet for the length of a block."""
    with _bars(console, quiet=not console.is_terminal) as bars:
        yield FleetBars(console, bars)


class FleetBars(FleetProgress):
    """The progress of a fleet: one bar per run on a terminal, one line per finished run elsewhere."""

    def __init__(self, console: Console, bars: Progress) -> None:
        self.say = printer(console)
        self._live = console.is_terminal
        self._bars = bars
        self._tasks: dict[RunSpec, TaskID] = {}
        self._last: dict[RunSpec, Event] = {}
        self._begun: dict[RunSpec, float] = {}

    def started(self, spec: RunSpec) -> None:
        self._begun[spec] = time.perf_counter()
        self._tasks[spec] = self._bars.add_task(spec.label, total=spec.preset.steps, summary="")

    def event(self, spec: RunSpec, event: Event) -> None:
        if event["event"] == "eval":
            self._last[spec] = event
        _show(self._bars, self._tasks[spec], event)

    def ended(self, spec: RunSpec, failure: str | None) -> None:
        if self._live and failure is None:
            return  # its bar stays on the screen and shows the result
        outcome = failure or (_summary(self._last[spec]) if spec in self._last else "found in the store")
        seconds = time.perf_counter() - self._begun[spec]
        self.say(f"{spec.label}: {outcome} ({seconds:.0f} s)")


def _bars(console: Console, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description:<32}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[summary]}"),
        console=console,
        disable=quiet,
        transient=not console.is_terminal,
    )


def _show(bars: Progress, task: TaskID, event: Event) -> None:
    """Move a bar after a step; show loss and norm after an evaluation."""
    if event["event"] == "step":
        bars.update(task, completed=event["step"], total=event["steps"])
    elif event["event"] == "eval":
        bars.update(task, summary=_summary(event))


def _summary(evaluation: Event) -> str:
    last = max(int(name.removeprefix("norm@")) for name in evaluation if name.startswith("norm@"))
    return f"ce {evaluation[f'ce@{last}']:.3f}  ||H_{last}|| {evaluation[f'norm@{last}']:,.4g}"
