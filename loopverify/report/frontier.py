"""Perplexity against speed, fixed depths beside halting rules, as a figure (Figure 4 of Sharma & Vu 2026).

chart = frontier_chart({"per_loop/raw": probes.frontier(model, calibration, evaluation)})
svg = figures.draw(chart, preset="tiny")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopverify.probes.frontier import Frontier, FrontierPoint
from loopverify.report.charts import Chart, Line

__all__ = ["frontier_chart"]


def frontier_chart(frontiers: Mapping[str, Frontier]) -> Chart:
    """A point for every fixed depth and for every halting rule of some models.

    Args:
        frontiers: by condition, '<loss>/<readout>', whose color its points get.
    """
    lines = []
    for condition, found in frontiers.items():
        lines.append(_line(condition, found.fixed))
        for score in dict.fromkeys(point.score for point in found.halting):
            rules = [point for point in found.halting if point.score == score]
            lines.append(_line(f"halting by {score}: {condition}", rules))
    return Chart(
        name="perplexity-by-halting",
        title="Perplexity against speed: fixed depths, and halting rules",
        x_label="tokens/s over those of full depth",
        y_label="perplexity",
        log=False,
        whole_x=False,
        lines=tuple(lines),
        points=True,
    )


def _line(condition: str, points: Sequence[FrontierPoint]) -> Line:
    xs, ys = zip(*sorted((point.speedup, point.perplexity) for point in points), strict=True)
    return Line(condition=condition, n=1, x=xs, mean=ys, low=ys, high=ys)
