"""The report: its counts, its correction for many tests, and its JSON."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from loopverify.claims import CLAIMS, evaluate
from loopverify.errors import InputError
from loopverify.report import build
from tests.loopverify.report.sample import STUDY, TABLE_2, sample_histories, sample_run, sample_runs


def strict_json(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_verdicts_are_those_of_the_claims() -> None:
    runs = sample_runs()
    report = build(runs, TABLE_2)
    assert report.evidence == tuple(evaluate(claim, runs) for claim in TABLE_2)
    assert report.counts == {"held": 21, "contradicted": 1, "inconclusive": 1, "not run": 0}
    assert build(runs).evidence == tuple(evaluate(claim, runs) for claim in CLAIMS.values())
    assert (report.preset, report.loops, report.runs) == ("tiny", 4, 21)
    assert report.title == "Claims on trained models, preset tiny"


def test_many_tests_at_once() -> None:
    # Ten comparisons, nine of them at the smallest p of 3 against 3 seeds, 0.05; times ten, this is 0.5.
    # C(8, 4) = 70 < 200 <= C(10, 5) = 252, so that ten tests at 0.05 need five seeds.
    assert build(sample_runs(3), TABLE_2).strength == (
        "9 of 10 rank tests hold at their own alpha; 0 of them still do after Holm's correction over all 10 at "
        "alpha = 0.05, which requires at least 5 seeds per side."
    )
    assert build(sample_runs(2), TABLE_2).strength == (
        "Comparisons by effect size alone: 10; a test requires at least 3 seeds per side."
    )
    assert build([]).strength == ""
    drift = [claim for claim in TABLE_2 if ".drift.per_loop." in claim.id]
    assert build(sample_runs(3), drift[:1]).strength == ""
    # Two tests: the smallest p, 1 / C(8, 4) = 0.0143, times two is still below 0.05.
    assert build(sample_runs(4), drift[:2]).strength == (
        "2 of 2 rank tests hold at their own alpha; 2 of them still do after Holm's correction over all 2 "
        "at alpha = 0.05."
    )


def test_json_holds_the_whole_record() -> None:
    runs = sample_runs()
    report = build(runs, TABLE_2, histories=sample_histories(runs), facts={"wall time": "60 s"}, title="A title")
    record = strict_json(report.to_json())
    assert record["title"] == "A title"
    assert record["counts"]["contradicted"] == 1
    assert [evidence["claim"] for evidence in record["evidence"]] == [claim.id for claim in TABLE_2]
    assert [row["condition"] for row in record["rows"]] == list(STUDY)
    assert [chart["name"] for chart in record["charts"]] == ["norm-by-loop", "norm-in-training", "ce-by-exit"]
    assert record["facts"]["wall time"] == "60 s"
    contradicted = next(e for e in record["evidence"] if e["verdict"] == "contradicted")
    assert contradicted["claim"] == "P1.T2.tens.per_loop.penalty"
    assert contradicted["measured"] == pytest.approx({"median": 126, "low": 120, "high": 132})


def test_json_of_a_diverged_run_is_still_json() -> None:
    runs = [*sample_runs(1, ["per_loop/raw"]), sample_run("per_loop/rmsnorm", 0, norm_4=math.nan, ppl_1=math.inf)]
    record = strict_json(build(runs).to_json())
    (row,) = (row for row in record["rows"] if row["condition"] == "per_loop/rmsnorm")
    assert (row["norm"], row["diverged"], row["perplexity"][0]) == (None, [0], "inf")


def test_the_order_of_runs_does_not_matter() -> None:
    runs = sample_runs()
    shuffled = random.Random(1).sample(runs, len(runs))
    assert (
        build(shuffled, histories=sample_histories(runs)).to_json()
        == build(runs, histories=sample_histories(runs)).to_json()
    )


def test_a_report_without_runs_says_so() -> None:
    report = build([])
    assert report.counts["not run"] == len(CLAIMS)
    assert report.title == "Claims, without any runs"
    assert (report.rows, report.charts, report.runs, report.loops) == ((), (), 0, 0)


def test_runs_that_must_not_be_compared_are_refused() -> None:
    with pytest.raises(InputError, match="a seed counts once"):
        build(sample_runs(1) + sample_runs(1))


def test_the_record_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        build([]).title = "another"  # type: ignore[misc]
    with pytest.raises(TypeError):
        build([]).facts["more"] = "facts"  # type: ignore[index]
