"""Table 10 of Sharma & Vu 2026 (appendix 13): how the norm of the final state is spread over tokens."""

from __future__ import annotations

from typing import Literal

from loopverify.claims import paper
from loopverify.claims.claim import Bound, Claim, Comparison
from loopverify.claims.words import WORDS, sentence

__all__ = ["TABLE_10"]

MOST_SPREAD = 2.0
"""p99 over median of a uniform drift; the paper has 1.6 and 1.8."""
LEAST_TAIL, LEAST_SKEW = 10.0, 2.0
"""p99 and mean over median of a heavy tail; the paper has 115 and 58, 21 and 12."""
MOST_P99 = 1000.0
"""p99 of ‖H_4‖₂ (L2) where scale is controlled; the paper has 44 to 259."""
LEAST_DRIFT = 30.0
"""Ratio of one percentile of ‖H_4‖₂, hidden over visible scale; the paper has 154 to 2,285."""

_T10 = "P1.T10_token_norms_20480_tokens"
_METRICS = {"mean": "norm@4", "median": "norm_median@4", "p99": "norm_p99@4"}


def _shape(kind: str, over: Literal["p99", "mean"], condition: str, told: str, form: Bound) -> Claim:
    return Claim(
        id=f"P1.T10.{kind}.{condition.split('/')[0]}.{over}",
        sentence=sentence(f"the drift of {WORDS[condition]} {told}"),
        source="P1, Table 10",
        metric=f"{_METRICS[over]}/{_METRICS['median']}",
        form=form,
        published=paper.by_size(
            lambda size: paper.entry(_T10, size, condition, over) / paper.entry(_T10, size, condition, "median")
        ),
    )


def _tight(loss: str) -> Claim:
    condition = f"{loss}/raw"
    return Claim(
        id=f"P1.T10.tight.{loss}.raw",
        sentence=sentence(f"{WORDS[condition]} keeps 99 of 100 final states at a norm of {MOST_P99:,g} or less"),
        source="P1, Table 10",
        metric=_METRICS["p99"],
        form=Bound(condition=condition, side="at most", value=MOST_P99),
        published=paper.by_size(lambda size: paper.entry(_T10, size, condition, "p99")),
    )


def _drift(loss: str, percentile: Literal["median", "p99"]) -> Claim:
    hidden, visible = f"{loss}/rmsnorm", f"{loss}/raw"
    return Claim(
        id=f"P1.T10.drift.{loss}.{percentile}",
        sentence=sentence(
            f"the {percentile} norm of the final state is at least {LEAST_DRIFT:g} times as large under "
            f"{WORDS[hidden]} as under {WORDS[visible]}"
        ),
        source="P1, Table 10",
        metric=_METRICS[percentile],
        form=Comparison(left=hidden, right=visible, by="ratio", least=LEAST_DRIFT),
        published=paper.by_size(
            lambda size: paper.entry(_T10, size, hidden, percentile) / paper.entry(_T10, size, visible, percentile)
        ),
    )


TABLE_10: tuple[Claim, ...] = (
    _shape(
        "uniform",
        "p99",
        "terminal/rmsnorm",
        f"is uniform over tokens: p99 is at most {MOST_SPREAD:g} times the median",
        Bound(condition="terminal/rmsnorm", side="at most", value=MOST_SPREAD),
    ),
    _shape(
        "heavy",
        "p99",
        "per_loop/rmsnorm",
        f"is heavy-tailed: p99 is at least {LEAST_TAIL:g} times the median",
        Bound(condition="per_loop/rmsnorm", side="at least", value=LEAST_TAIL),
    ),
    _shape(
        "heavy",
        "mean",
        "per_loop/rmsnorm",
        f"is heavy-tailed: the mean is at least {LEAST_SKEW:g} times the median",
        Bound(condition="per_loop/rmsnorm", side="at least", value=LEAST_SKEW),
    ),
    _tight("terminal"),
    _tight("per_loop"),
    _drift("terminal", "median"),
    _drift("terminal", "p99"),
    _drift("per_loop", "median"),
    _drift("per_loop", "p99"),
)
