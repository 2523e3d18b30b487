"""Perplexity against speed, as figures (Figure 4 of Sharma & Vu 2026): fixed depths of stored runs, and halting rules.

chart = frontier_chart({"per_loop/raw": halting.frontier(model, calibration, evaluation)})
svg = figures.draw(chart, preset="tiny")
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from loopverify.claims import Run
from loopverify.halting.frontier import Frontier, FrontierPoint
from loopverify.report.chart import Chart, Line, scattered
from loopverify.report.measured_rows import by_condition, last_loop

__all__ = ["depth_chart", "frontier_chart"]


def frontier_chart(frontiers: Mapping[str, Frontier]) -> Chart:
    """A point for every fixed depth and for every halting rule of some models.

    Args:
        frontiers: by condition, '<loss>/<readout>', which determines the color of the points.
    """
    return _against_speed(
        "perplexity-by-halting",
        title="Perplexity against speed: fixed depths, and halting rules",
        x_label="tokens/s over those of full depth",
        lines=(line for condition, found in frontiers.items() for line in _rules(condition, found)),
    )


def depth_chart(runs: Sequence[Run]) -> Chart:
    """A point for every fixed depth of the runs that were timed, and of the RMSNorm runs of the same seeds.

    Both speeds are from one measurement with interleaved timing: 'timing_tokens_per_s@k' of the run that was timed, and
    'timing_rmsnorm_tokens_per_s@k' of the same run with an RMSNorm readout in place of its own.
    """
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    seeds: dict[str, set[int]] = defaultdict(set)
    for run, speed, of in _timed(runs):
        if found := list(_depths(run, speed, of)):
            points[of.condition] += found
            seeds[of.condition].add(of.seed)
    return _against_speed(
        "perplexity-by-speed",
        title="Perplexity against throughput, a point for every fixed depth and seed",
        x_label="tokens/s",
        lines=(line for name in by_condition(runs) for line in scattered(name, len(seeds[name]), points[name])),
        log_x=True,
    )


def _against_speed(name: str, *, title: str, x_label: str, lines: Iterable[Line], log_x: bool = False) -> Chart:
    return Chart(
        name=name,
        title=title,
        x_label=x_label,
        y_label="perplexity",
        lines=tuple(lines),
        log_x=log_x,
        points=True,
    )


def _rules(condition: str, found: Frontier) -> Iterator[Line]:
    """The fixed depths of one model, and the halting rules by their score."""
    yield from scattered(condition, 1, map(_point, found.fixed))
    for score in dict.fromkeys(point.score for point in found.halting):
        rules = [point for point in found.halting if point.score == score]
        yield from scattered(f"halting by {score}: {condition}", 1, map(_point, rules))


def _point(point: FrontierPoint) -> tuple[float, float]:
    return point.speedup, point.perplexity


def _timed(runs: Sequence[Run]) -> Iterator[tuple[Run, str, Run]]:
    """(run with the metric, metric, run whose speed it is), for every run without RMSNorm and for its RMSNorm rival."""
    by_label = {run.label: run for run in runs}
    for run in runs:
        loss, readout, *rest = run.condition.split("/")
        if readout == "rmsnorm":
            continue  # timed only as the rival of other runs
        rival = by_label.get(f"{'/'.join([loss, 'rmsnorm', *rest])} seed {run.seed}")
        yield run, "timing_tokens_per_s", run
        if rival is not None:
            yield run, "timing_rmsnorm_tokens_per_s", rival


def _depths(run: Run, speed: str, of: Run) -> Iterator[tuple[float, float]]:
    """(tokens/s, perplexity) of every depth that has both."""
    for k in range(1, last_loop([of], "ppl") + 1):
        if f"{speed}@{k}" in run.metrics:
            yield run.metrics[f"{speed}@{k}"], of.metrics[f"ppl@{k}"]
