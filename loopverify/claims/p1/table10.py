"""Table 10 of Sharma & Vu 2026 (appendix 13): how the norm of the final state is spread over tokens."""

from __future__ import annotations

from typing import Literal

from loopverify.claims.claim import Bound, Claim, sentence
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import (
    PER_LOOP_RAW,
    PER_LOOP_RMSNORM,
    TERMINAL_RAW,
    TERMINAL_RMSNORM,
    Condition,
)
from loopverify.claims.p1.published import by_size, entry

__all__ = ["TABLE_10"]

Statistic = Literal["mean", "median", "p99"]
_METRICS: dict[Statistic, str] = {"mean": "norm@4", "median": "norm_median@4", "p99": "norm_p99@4"}


def _shape(
    kind: str, over: Statistic, condition: Condition, effect: str, side: Literal["at least", "at most"], limit: float
) -> Claim:
    return Claim(
        id=f"P1.T10.{kind}.{condition.loss}.{over}",
        sentence=sentence(f"the drift of {condition.words} is {effect} {side} {limit:g} times the median"),
        source="P1, Table 10",
        metric=f"{_METRICS[over]}/{_METRICS['median']}",
        form=Bound(condition=condition.name, side=side, value=limit),
        published=by_size(lambda size: entry("T10", size, condition, over) / entry("T10", size, condition, "median")),
    )


def _tight(condition: Condition) -> Claim:
    return Claim(
        id=f"P1.T10.tight.{condition.slug}",
        sentence=sentence(
            f"{condition.words} keeps 99 of 100 final states at a norm of {limits.T10_MOST_P99:,g} or less"
        ),
        source="P1, Table 10",
        metric=_METRICS["p99"],
        form=condition.at_most(limits.T10_MOST_P99),
        published=by_size(lambda size: entry("T10", size, condition, "p99")),
    )


def _drift(hidden: Condition, visible: Condition, percentile: Statistic) -> Claim:
    return Claim(
        id=f"P1.T10.drift.{hidden.loss}.{percentile}",
        sentence=sentence(
            f"the {percentile} norm of the final state is at least {limits.T10_LEAST_DRIFT:g} times as large under "
            f"{hidden.words} as under {visible.words}"
        ),
        source="P1, Table 10",
        metric=_METRICS[percentile],
        form=hidden.exceeds(visible, by="ratio", least=limits.T10_LEAST_DRIFT),
        published=by_size(
            lambda size: entry("T10", size, hidden, percentile) / entry("T10", size, visible, percentile)
        ),
    )


TABLE_10: tuple[Claim, ...] = (
    _shape("uniform", "p99", TERMINAL_RMSNORM, "uniform over tokens: p99 is", "at most", limits.T10_MOST_SPREAD),
    _shape("heavy", "p99", PER_LOOP_RMSNORM, "heavy-tailed: p99 is", "at least", limits.T10_LEAST_TAIL),
    _shape("heavy", "mean", PER_LOOP_RMSNORM, "heavy-tailed: the mean is", "at least", limits.T10_LEAST_SKEW),
    _tight(TERMINAL_RAW),
    _tight(PER_LOOP_RAW),
    _drift(TERMINAL_RMSNORM, TERMINAL_RAW, "median"),
    _drift(TERMINAL_RMSNORM, TERMINAL_RAW, "p99"),
    _drift(PER_LOOP_RMSNORM, PER_LOOP_RAW, "median"),
    _drift(PER_LOOP_RMSNORM, PER_LOOP_RAW, "p99"),
)
