"""The figures as data: which quantities of which runs, in which units. `report.figures` draws them.

Figures of Sharma & Vu 2026: 1 (gap-by-visibility), 3 (update-by-loop, turning-by-loop), 4 (perplexity-by-speed),
5 and 6 (ce-by-scale), 7 (ce-by-run).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from loopverify.claims import Run
from loopverify.claims.expression import names, value
from loopverify.report.chart import Chart, Line, scattered
from loopverify.report.frontier import depth_chart
from loopverify.report.measured_rows import by_condition, last_loop

__all__ = ["History", "charts"]

History = Sequence[Mapping[str, Any]]
"""Evaluations during one training run, in order: {'step': ..., 'norm@k': ..., 'ce@k': ...}."""


def charts(runs: Sequence[Run], histories: Mapping[str, History]) -> tuple[Chart, ...]:
    """The figures for which the runs have data."""
    loops = last_loop(runs)
    state, exits = _per_loop(runs, "norm", range(loops + 1)), _per_loop(runs, "ce", range(1, loops + 1))
    made = (
        Chart(
            name="norm-by-loop",
            title="Size of the state, loop by loop",
            x_label="loop k (0: the embedding)" if any(line.x[0] == 0 for line in state) else "loop k",
            y_label="‖H_k‖₂ (L2 over channels)",
            log=True,
            whole_x=True,
            lines=state,
        ),
        Chart(
            name="norm-in-training",
            title="Size of the final state during training",
            x_label="training step",
            y_label=f"‖H_{loops}‖₂ (L2 over channels)",
            log=True,
            lines=_over_steps(runs, histories, f"norm@{loops}"),
        ),
        Chart(
            name="ce-by-exit",
            title="Held-out cross-entropy, exit by exit",
            x_label="exit k",
            y_label="CE(k) (nats per token)",
            log=_spans(exits, 4),
            whole_x=True,
            lines=exits,
        ),
        *_of_depth(runs),
        *_of_long_runs(runs),
    )
    return tuple(chart for chart in made if chart.lines)


def _of_depth(runs: Sequence[Run]) -> tuple[Chart, ...]:
    """The figures of what loops contribute: by visibility, by loops and by time."""
    return (
        Chart(
            name="gap-by-visibility",
            title="What the last exit's gradient sees of scale, and how usable the first exit is",
            x_label="r_K (radial part of the gradient)",
            y_label="CE(1) − CE(K) (nats per token)",
            lines=_scatter(runs, f"r@{last_loop(runs)}", f"ce@1-ce@{last_loop(runs)}"),
            log_x=True,
            points=True,
        ),
        Chart(
            name="ce-by-run",
            title="Held-out cross-entropy of the last exit, by the loops that are run",
            x_label="loops of the run",
            y_label="CE (nats per token)",
            whole_x=True,
            lines=_over(runs, "ce_run"),
        ),
        depth_chart(runs),
    )


def _of_long_runs(runs: Sequence[Run]) -> tuple[Chart, ...]:
    """The figures of runs far beyond the trained loops, and of rescaled states."""
    return (
        Chart(
            name="update-by-loop",
            title="Size of the residual update in a long run, loop by loop",
            x_label="loop k",
            y_label="rms(H_k − H_k−1)",
            log=True,
            whole_x=True,
            lines=_over(runs, "b"),
        ),
        Chart(
            name="turning-by-loop",
            title="How far a loop turns the state in a long run",
            x_label="loop k",
            y_label="rms(u_k − u_k−1), u = H/rms(H)",
            log=True,
            whole_x=True,
            lines=_over(runs, "angular_step"),
        ),
        Chart(
            name="ce-by-scale",
            title="Held-out cross-entropy with the last state rescaled before its readout",
            x_label="factor α",
            y_label="CE (nats per token)",
            log=True,
            lines=_over(runs, "sweep_ce"),
            log_x=True,
        ),
    )


def _over(runs: Sequence[Run], kind: str) -> tuple[Line, ...]:
    """Lines over x of all metrics kind@x where x is a number."""
    points: dict[str, list[tuple[float, Any]]] = {run.label: [] for run in runs}
    for run in runs:
        for name, y in run.metrics.items():
            prefix, _, x = name.partition("@")
            if prefix == kind and x.replace(".", "", 1).isdigit():
                points[run.label].append((float(x), y))
    return _lines(points, runs)


def _scatter(runs: Sequence[Run], x: str, y: str) -> tuple[Line, ...]:
    """A point for every run that has both metrics."""
    needed = {*names(x), *names(y)}
    made: list[Line] = []
    for condition, of in by_condition(runs).items():
        measured = [run.metrics for run in of if run.metrics.keys() >= needed]
        made += scattered(condition, len(measured), ((value(x, found), value(y, found)) for found in measured))
    return tuple(made)


def _per_loop(runs: Sequence[Run], metric: str, loops: range) -> tuple[Line, ...]:
    return _lines({run.label: [(k, run.metrics.get(f"{metric}@{k}")) for k in loops] for run in runs}, runs)


def _over_steps(runs: Sequence[Run], histories: Mapping[str, History], metric: str) -> tuple[Line, ...]:
    points = {run.label: [(event["step"], event.get(metric)) for event in histories.get(run.key, ())] for run in runs}
    return _lines(points, runs)


def _lines(points: Mapping[str, list[tuple[float, Any]]], runs: Sequence[Run]) -> tuple[Line, ...]:
    made = (
        _line(condition, [points[run.label] for run in of if points[run.label]])
        for condition, of in by_condition(runs).items()
    )
    return tuple(line for line in made if line.x)


def _line(condition: str, seeds: list[list[tuple[float, Any]]]) -> Line:
    at: dict[float, list[float]] = {}
    for seed in seeds:
        for x, y in seed:
            if y is not None and math.isfinite(y):
                at.setdefault(x, []).append(float(y))
    xs = sorted(at)
    return Line(
        condition=condition,
        n=len(seeds),
        x=tuple(xs),
        mean=tuple(fmean(at[x]) for x in xs),
        low=tuple(min(at[x]) for x in xs),
        high=tuple(max(at[x]) for x in xs),
    )


def _spans(lines: Sequence[Line], factor: float) -> bool:
    """Whether the means differ by more than a factor, so that a linear axis would flatten most lines."""
    values = [y for line in lines for y in line.mean]
    return bool(values) and min(values) > 0 and max(values) > factor * min(values)
