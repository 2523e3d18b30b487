"""Figures of perplexity against speed, as data and drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from loopverify.claims import Run
from loopverify.halting.frontier import Frontier, FrontierPoint
from loopverify.report.figures import draw
from loopverify.report.frontier import depth_chart, frontier_chart
from tests.loopverify.report.sample import sample_runs


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


def timed(run: Run, speeds: dict[str, float]) -> Run:
    return replace(run, metrics={**run.metrics, **speeds})


def test_both_readouts_are_drawn_at_the_speeds_of_one_measurement() -> None:
    raw, plain = (sample_runs(2, [f"per_loop/{readout}"]) for readout in ("raw", "rmsnorm"))
    own = {"timing_tokens_per_s@1": 800.0, "timing_tokens_per_s@2": math.nan, "timing_tokens_per_s@4": 210.0}
    turns = {"timing_rmsnorm_tokens_per_s@1": 790.0, "timing_rmsnorm_tokens_per_s@4": 200.0}
    alone = {"timing_tokens_per_s@1": 650.0}  # of an RMSNorm run by itself, in another measurement
    runs = [timed(raw[0], own | turns), timed(raw[1], own), timed(plain[0], alone), plain[1]]
    chart = depth_chart(runs)
    lines = {line.condition: line for line in chart.lines}
    of_raw, of_plain = lines["per_loop/raw"], lines["per_loop/rmsnorm"]
    assert (of_raw.x, of_raw.n) == ((210, 210, 800, 800), 2)  # what is not finite is no point
    assert sorted(of_raw.mean[2:]) == pytest.approx(sorted(run.metrics["ppl@1"] for run in raw))
    assert (of_plain.x, of_plain.n) == ((200, 790), 1)
    assert of_plain.mean == pytest.approx((plain[0].metrics["ppl@4"], plain[0].metrics["ppl@1"]))
    assert "perplexity against throughput" in draw(chart, "tiny").lower()


def test_runs_with_rmsnorm_alone_and_runs_that_were_not_timed_have_no_frontier() -> None:
    plain = [timed(run, {"timing_tokens_per_s@1": 650.0}) for run in sample_runs(1, ["per_loop/rmsnorm"])]
    assert depth_chart([*plain, *sample_runs(1, ["per_loop/raw"])]).lines == ()
    assert depth_chart([]).lines == ()
