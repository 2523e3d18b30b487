"""Claims and metric expressions as records: what they refuse, and how they are written for people."""

from __future__ import annotations

import math
from typing import Any

import pytest

from loopverify.claims import Bound, Claim, Comparison, metric, paper
from loopverify.errors import InputError

BOUND = Bound(condition="a/b", side="at most", value=1.0)


def test_expressions() -> None:
    metrics = {"ce@1": 2.5, "ce@4": 2.0, "norm@4": 7.0}
    assert metric.names("ce@1-ce@4") == ("ce@1", "ce@4")
    assert metric.value("ce@1-ce@4", metrics) == 0.5
    assert metric.value("norm@4", metrics) == 7.0
    assert (metric.unit("ce@1-ce@4"), metric.unit("norm@12"), metric.unit("accuracy")) == ("nats", "L2", "")
    assert metric.label("ce@1-ce@4") == "CE(1) − CE(4)"
    assert metric.label("norm@4") == "‖H_4‖₂"
    assert metric.label("accuracy@4") == "accuracy@4"


def test_ratios() -> None:
    metrics = {"norm_p99@4": 30.0, "norm_median@4": 12.0, "norm@1": 0.0}
    assert metric.names("norm_p99@4/norm_median@4") == ("norm_p99@4", "norm_median@4")
    assert metric.value("norm_p99@4/norm_median@4", metrics) == 2.5
    assert math.isnan(metric.value("norm_p99@4/norm@1", metrics))
    assert metric.unit("norm_p99@4/norm_median@4") == "×"
    assert metric.label("norm_p99@4/norm_median@4") == "p99 ‖H_4‖₂ / median ‖H_4‖₂"
    with pytest.raises(InputError, match="metric 'ce@1/norm@1' takes a ratio of L2 and nats; expected one unit"):
        metric.unit("ce@1/norm@1")


def test_what_stands_behind_the_at_need_not_be_a_loop() -> None:
    assert metric.names("sweep_ce@0.1-sweep_ce@10") == ("sweep_ce@0.1", "sweep_ce@10")
    assert metric.label("a_rad@late") == "a_rad (late)"
    assert (metric.unit("a_rad@late"), metric.unit("clamp_delta_ce")) == ("rms", "nats")


@pytest.mark.parametrize(
    "expression", ["", "ce@1-ce@2-ce@3", "ce@", "ce@1 - ce@4", "2*ce@1", "-ce@1", "CE@1", "ce@1/", "ce@1/ce@2/ce@3"]
)
def test_no_expression(expression: str) -> None:
    with pytest.raises(
        InputError, match="expected a name such as 'norm@4', a difference such as 'ce@1-ce@4', or a ratio"
    ):
        metric.names(expression)


def test_units_do_not_mix() -> None:
    with pytest.raises(InputError, match="metric 'ce@1-norm@1' subtracts L2 from nats; expected one unit"):
        metric.unit("ce@1-norm@1")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (891.07, "×", "×891"),
        (39207.4, "L2", "39,207 L2"),
        (0.1157, "nats", "0.116 nats"),
        (37.17, "nats", "37.2 nats"),
        (5.375, "", "5.38"),
        (1.1e9, "", "1.1e+09"),
        (-0.002, "nats", "-0.002 nats"),
        (4.7e-9, "", "4.7e-09"),
        (-0.00041, "nats", "-0.00041 nats"),
        (0.0, "nats", "0 nats"),
        (float("nan"), "", "nan"),
        (float("inf"), "", "inf"),
    ],
)
def test_quantities_for_people(value: float, unit: str, text: str) -> None:
    assert metric.quantity(value, unit) == text


def test_an_error_has_the_decimals_of_its_value() -> None:
    assert metric.number(0.4551, like=9.66) == "0.46"
    assert metric.number(19891.4, like=39207.0) == "19,891"
    assert metric.number(2e7, like=1.0) == "2e+07"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Comparison(left="a", right="b", by="sum", least=1), "unknown kind of effect 'sum'"),  # type: ignore[arg-type]
        (lambda: Bound(condition="a", side="near", value=1), "unknown side of a bound 'near'"),  # type: ignore[arg-type]
        (lambda: Claim(id="a.b", sentence="", source="", metric="2", form=BOUND), "metric is '2'"),
        (lambda: Claim(id="a.b", sentence="", source="", metric="ce@1", form=BOUND, alpha=0), r"alpha of a\.b is 0"),
    ],
)
def test_refusals(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_published_tables_come_with_their_sources() -> None:
    tables = paper.tables()
    assert "arXiv 2606.24898" in tables["source"]["P1"]
    assert paper.final_norm("per_loop/rmsnorm", "44m") == 39207
    assert paper.perplexity("terminal+penalty/rmsnorm", "129m") == 4.81
    assert dict(paper.by_size(lambda size: {"44m": 1.0}[size])) == {"44m": 1.0}
