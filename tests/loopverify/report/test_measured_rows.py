"""The measured table, and the facts below it."""

from __future__ import annotations

import math

import pytest

from loopverify.claims import Run, one_study
from loopverify.report.facts import shared_facts
from loopverify.report.measured_rows import Spread, last_loop, measured_rows
from tests.loopverify.report.sample import STUDY, sample_run, sample_runs


def run(condition: str = "per_loop/raw", seed: int = 0, facts: dict[str, str] | None = None, **metrics: float) -> Run:
    named = {name.replace("_", "@"): value for name, value in metrics.items()}
    return Run(preset="tiny", condition=condition, seed=seed, metrics=named, facts=facts or {})


def test_mean_and_sample_deviation_over_seeds() -> None:
    rows = measured_rows(one_study([run(seed=s, norm_2=norm, ppl_1=8, ppl_2=s) for s, norm in enumerate([2, 4, 9])]))
    (row,) = rows
    assert row.norm == Spread(mean=5.0, std=pytest.approx(math.sqrt(13)))  # (9 + 1 + 16) / 2
    assert str(row.norm) == "5 ± 3.61"
    assert row.perplexity == (8, 1)
    assert (row.seeds, row.diverged) == ((0, 1, 2), ())


def test_a_single_seed_has_no_deviation() -> None:
    (row,) = measured_rows([run(norm_4=1234.5)])
    assert str(row.norm) == "1,234"
    assert all(map(math.isnan, row.perplexity))


def test_a_diverged_seed_is_left_out_and_named() -> None:
    (row,) = measured_rows([run(norm_4=3.0), run(seed=1, norm_4=math.inf), run(seed=2)])
    assert row.norm == Spread(mean=3.0, std=None)
    assert row.diverged == (1, 2)
    assert measured_rows([run(norm_4=math.nan)])[0].norm is None


def test_rows_follow_table_2_and_carry_its_numbers() -> None:
    rows = measured_rows(one_study([*sample_runs(1), run("layernorm/first", norm_4=1.0)]))
    assert [row.condition for row in rows] == [*STUDY, "layernorm/first"]
    per_loop = next(row for row in rows if row.condition == "per_loop/rmsnorm")
    assert {size: str(norm) for size, norm in per_loop.published_norm.items()} == {
        "44m": "39,207 ± 19,891",
        "129m": "56,051 ± 23,993",
    }
    assert dict(per_loop.published_perplexity) == {"44m": 6.04, "129m": 5.35}
    penalized = next(row for row in rows if row.condition == "terminal+penalty/rmsnorm")
    assert str(penalized.published_norm["44m"]) == "21"  # the paper prints no deviation here
    assert dict(rows[-1].published_norm) == {}


def test_last_loop() -> None:
    assert last_loop([run(norm_4=1, ce_8=1), run(norm_12=1)]) == 12
    assert last_loop([run(ce_8=1)]) == 0
    assert last_loop([]) == 0


def test_facts_of_all_runs_and_where_they_differ() -> None:
    facts = [{"device": "cpu", "lr": "0.01"}, {"device": "cpu", "lr": "0.02"}, {"device": "cpu"}]
    assert shared_facts([run(seed=s, facts=f) for s, f in enumerate(facts)]) == {
        "device": "cpu",
        "lr": "0.01 (1 of 3 runs), 0.02 (1 of 3 runs), unknown (1 of 3 runs)",
    }
    times = [run(seed=s, facts={"wall_s": str(60 + s), "host": f"node{s}"}) for s in range(5)]
    assert shared_facts(times) == {"wall_s": "60 … 64", "host": "5 values in 5 runs"}
    assert shared_facts([sample_run("per_loop/raw", 0)])["torch"] == "2.6.0"
    assert shared_facts([]) == {}
