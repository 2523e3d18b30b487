"""Expressions on metrics: what they read, and how they are labelled."""

from __future__ import annotations

import math

import pytest

from loopverify.claims import expression
from loopverify.errors import InputError


def test_expressions() -> None:
    metrics = {"ce@1": 2.5, "ce@4": 2.0, "norm@4": 7.0}
    assert expression.names("ce@1-ce@4") == ("ce@1", "ce@4")
    assert expression.value("ce@1-ce@4", metrics) == 0.5
    assert expression.value("norm@4", metrics) == 7.0
    assert (expression.unit("ce@1-ce@4"), expression.unit("norm@12"), expression.unit("accuracy_2@1")) == (
        "nats",
        "L2",
        "",
    )
    assert expression.label("ce@1-ce@4") == "CE(1) − CE(4)"
    assert expression.label("norm@4") == "‖H_4‖₂"
    assert expression.label("accuracy_2@4") == "accuracy of 2-step answers at exit 4"


def test_ratios() -> None:
    metrics = {"norm_p99@4": 30.0, "norm_median@4": 12.0, "norm@1": 0.0}
    assert expression.names("norm_p99@4/norm_median@4") == ("norm_p99@4", "norm_median@4")
    assert expression.value("norm_p99@4/norm_median@4", metrics) == 2.5
    assert math.isnan(expression.value("norm_p99@4/norm@1", metrics))
    assert expression.unit("norm_p99@4/norm_median@4") == "×"
    assert expression.label("norm_p99@4/norm_median@4") == "p99 ‖H_4‖₂ / median ‖H_4‖₂"
    with pytest.raises(InputError, match="metric 'ce@1/norm@1' takes a ratio of L2 and nats; expected one unit"):
        expression.unit("ce@1/norm@1")


def test_what_stands_behind_the_at_need_not_be_a_loop() -> None:
    assert expression.names("sweep_ce@0.1-sweep_ce@10") == ("sweep_ce@0.1", "sweep_ce@10")
    assert expression.label("a_rad@late") == "a_rad (late)"
    assert (expression.unit("a_rad@late"), expression.unit("clamp_delta_ce")) == ("rms", "nats")


@pytest.mark.parametrize(
    "text", ["", "ce@1-ce@2-ce@3", "ce@1 - ce@4", "2*ce@1", "-ce@1", "CE@1", "ce@1/", "ce@1/ce@2/ce@3"]
)
def test_no_expression(text: str) -> None:
    with pytest.raises(
        InputError, match="expected a name such as 'norm@4', a difference such as 'ce@1-ce@4', or a ratio"
    ):
        expression.names(text)


def test_units_do_not_mix() -> None:
    with pytest.raises(InputError, match="metric 'ce@1-norm@1' subtracts L2 from nats; expected one unit"):
        expression.unit("ce@1-norm@1")
