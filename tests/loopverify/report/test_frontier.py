"""The figure of a frontier, as data and drawn."""

from __future__ import annotations

import math

from loopverify.probes.frontier import Frontier, FrontierPoint
from loopverify.report.figures import draw
from loopverify.report.frontier import frontier_chart


def point(score: str | None, speedup: float, perplexity: float) -> FrontierPoint:
    return FrontierPoint(
        score=score,
        threshold=None,
        budget=None,
        selected_loops=2,
        executed_loops=2,
        head_products=1,
        loss=math.log(perplexity),
        tokens_per_second=100 * speedup,
        speedup=speedup,
        ideal=4,
    )


def test_every_depth_and_every_rule_is_a_point() -> None:
    found = Frontier(
        model="made up",
        loops=2,
        fixed=(point(None, 2.0, 9.0), point(None, 1.0, 8.0)),
        halting=(point("margin", 1.5, 8.5), point("state_change", 1.8, 8.6), point("margin", 1.2, 8.2)),
        head_cost=0.3,
        repeats=5,
        sequences=160,
        tokens=160 * 32,
        pool=1,
    )
    chart = frontier_chart({"per_loop/raw": found})
    assert {line.condition: [round(y, 6) for y in line.mean] for line in chart.lines} == {
        "per_loop/raw": [8.0, 9.0],
        "halting by margin: per_loop/raw": [8.2, 8.5],
        "halting by state_change: per_loop/raw": [8.6],
    }
    assert [line.x for line in chart.lines] == [(1.0, 2.0), (1.2, 1.5), (1.8,)]
    svg = draw(chart, "tiny")
    assert "halting by state_change: per_loop/raw" in svg
    assert "tokens/s over those of full depth" in svg
