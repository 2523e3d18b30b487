"""Table 10 of Sharma & Vu 2026 (appendix 13): how the norm of the final state is distributed over tokens."""

from __future__ import annotations

from functools import partial
from typing import Literal

from loopverify.claims.claim import Claim
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import (
    PER_LOOP_RAW,
    PER_LOOP_RMSNORM,
    TERMINAL_RAW,
    TERMINAL_RMSNORM,
)
from loopverify.claims.p1.published import column, entry, ratio
from loopverify.claims.template import Condition, claims

__all__ = ["TABLE_10"]

Statistic = Literal["mean", "median", "p99"]
_METRICS: dict[Statistic, str] = {"mean": "norm@4", "median": "norm_median@4", "p99": "norm_p99@4"}
_claims = partial(claims, source="P1, Table 10")


def _shape(
    shape: str, over: Statistic, condition: Condition, effect: str, kind: Literal["at least", "at most"], limit: float
) -> tuple[Claim, ...]:
    return _claims(
        f"P1.T10.{shape}.{{0.loss}}.{over}",
        f"the drift of {{0}} is {effect} {kind} {{limit:g}} times the median",
        condition,
        form=(kind, limit),
        metric=f"{_METRICS[over]}/{_METRICS['median']}",
        published=lambda size, of: entry("T10", size, of, over) / entry("T10", size, of, "median"),
    )


def _drift(hidden: Condition, visible: Condition, percentile: Statistic) -> tuple[Claim, ...]:
    return _claims(
        f"P1.T10.drift.{{0.loss}}.{percentile}",
        f"the {percentile} norm of the final state is at least {{limit:g}} times as large under {{0}} as under {{1}}",
        (hidden, visible),
        form=("ratio", limits.T10_LEAST_DRIFT),
        metric=_METRICS[percentile],
        published=ratio("T10", percentile),
    )


TABLE_10: tuple[Claim, ...] = (
    *_shape("uniform", "p99", TERMINAL_RMSNORM, "uniform over tokens: p99 is", "at most", limits.T10_MOST_SPREAD),
    *_shape("heavy", "p99", PER_LOOP_RMSNORM, "heavy-tailed: p99 is", "at least", limits.T10_LEAST_TAIL),
    *_shape("heavy", "mean", PER_LOOP_RMSNORM, "heavy-tailed: the mean is", "at least", limits.T10_LEAST_SKEW),
    *_claims(
        "P1.T10.tight.{0.slug}",
        "{0} keeps 99 of 100 final states at a norm of {limit:,g} or less",
        *(TERMINAL_RAW, PER_LOOP_RAW),
        form=("at most", limits.T10_MOST_P99),
        metric=_METRICS["p99"],
        published=column("T10", "p99"),
    ),
    *_drift(TERMINAL_RMSNORM, TERMINAL_RAW, "median"),
    *_drift(TERMINAL_RMSNORM, TERMINAL_RAW, "p99"),
    *_drift(PER_LOOP_RMSNORM, PER_LOOP_RAW, "median"),
    *_drift(PER_LOOP_RMSNORM, PER_LOOP_RAW, "p99"),
)
