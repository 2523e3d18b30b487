"""Table 7 of Sharma & Vu 2026 (appendix 11.2): multiple choice by the likelihood of continuations.

No model of regex tokens on the text of a preset can answer these: the questions are those of nine benchmarks, and no
package that this library can depend on contains them. `measures.choices` measures them for users who have them.
"""

from __future__ import annotations

from loopverify.claims.claim import Claim
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import PER_LOOP_RAW, PER_LOOP_RMSNORM
from loopverify.claims.p1.published import entry
from loopverify.claims.template import Condition, claims

__all__ = ["TABLE_7"]

_RAW, _RMSNORM = PER_LOOP_RAW, PER_LOOP_RMSNORM


def _choices(
    name: str, metric: str, effect: str, row: str, *of: tuple[Condition, Condition], limit: float, percent: bool
) -> tuple[Claim, ...]:
    """The paper's change, in percent or not, is that of raw over RMSNorm."""

    def published(size: str, left: Condition, right: Condition) -> float:
        return (1 if left is _RAW else -1) / (100 if percent else 1) * entry("T7", size, row, "change")

    return claims(
        f"P1.T7.{name}",
        f"on multiple-choice questions, {{0}} {effect} than {{1}}",
        *of,
        form=("difference", limit),
        metric=f"choice_{metric}",
        source="P1, Table 7",
        published=published,
        needs="the questions of the nine benchmarks of Table 7, which come with no package",
    )


TABLE_7: tuple[Claim, ...] = (
    *_choices(
        *("nll", "nll", "assigns the choices at least {limit:g} nats per token more NLL", "candidate_nll"),
        (_RMSNORM, _RAW),
        limit=limits.T7_LEAST_SCORE,
        percent=False,
    ),
    *_choices(
        *("margin", "margin", "prefers the gold choice by at least {limit:g} nats per token more", "gold_margin"),
        (_RAW, _RMSNORM),
        limit=limits.T7_LEAST_SCORE,
        percent=False,
    ),
    *_choices(
        *("probability", "gold_probability", "gives the gold choice at least {limit:g} more probability"),
        "gold_prob_pct",
        (_RAW, _RMSNORM),
        limit=limits.T7_LEAST_PROBABILITY,
        percent=True,
    ),
    *_choices(
        "accuracy.{0.short}",
        "accuracy",
        f"is at most {limits.T7_MOST_ACCURACY_LOST:g} less accurate",
        "lennorm_acc_macro",
        (_RAW, _RMSNORM),
        (_RMSNORM, _RAW),
        limit=-limits.T7_MOST_ACCURACY_LOST,
        percent=True,
    ),
)
