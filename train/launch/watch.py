"""Progress of training for people: a bar for one run, a bar for each of a fleet's runs, or plain lines."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from train.engine.events import Event
from train.specification import RunSpec

__all__ = ["FleetBars", "RunBar"]


def _bars(console: Console, quiet: bool = False) -> Progress:
    return Progress(
        TextColumn("{task.description:<32}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[told]}"),
        console=console,
        disable=quiet,
        transient=not console.is_terminal,
    )


def _told(event: Event) -> str:
    loops = [int(name.removeprefix("norm@")) for name in event if name.startswith("norm@")]
    last = max(loops)
    return f"ce {event[f'ce@{last}']:.3f}  ||H_{last}|| {event[f'norm@{last}']:,.4g}"


class RunBar:
    """The progress of one run."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self._bars = _bars(console, quiet)
        self._task = self._bars.add_task("training", total=None, told="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bars.stop()

    def event(self, event: Event) -> None:
        """Move the bar; show the loss and the norm as soon as they are known."""
        if event["event"] == "step":
            self._bars.update(self._task, completed=event["step"], total=event["steps"])
        elif event["event"] == "eval":
            self._bars.update(self._task, told=_told(event))


class FleetBars:
    """The progress of a fleet: bars on a terminal, one line a finished run elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = console.is_terminal
        self._bars = _bars(console, quiet=not self._live)
        self._tasks: dict[RunSpec, TaskID] = {}
        self._last: dict[RunSpec, Event] = {}
        self._begun: dict[RunSpec, float] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bars.stop()

    def started(self, spec: RunSpec) -> None:
        self._begun[spec] = time.perf_counter()
        self._tasks[spec] = self._bars.add_task(spec.label, total=spec.preset.steps, told="")

    def event(self, spec: RunSpec, event: Event) -> None:
        if event["event"] == "step":
            self._bars.update(self._tasks[spec], completed=event["step"], total=event["steps"])
        elif event["event"] == "eval":
            self._last[spec] = event
            self._bars.update(self._tasks[spec], told=_told(event))

    def ended(self, spec: RunSpec, failure: str | None) -> None:
        if self._live and failure is None:
            return  # its bar stays and tells it
        told = failure or (_told(self._last[spec]) if spec in self._last else "found in the store")
        seconds = time.perf_counter() - self._begun[spec]
        self.say(f"{spec.label}: {told} ({seconds:.0f} s)")

    def say(self, text: str) -> None:
        """One line among the bars."""
        self._console.print(text, markup=False, soft_wrap=True)
