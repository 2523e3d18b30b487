"""Table 7 of Sharma & Vu 2026 (appendix 11.2): multiple choice by the likelihood of continuations.

No model of regex tokens on the text of a preset can answer these: the questions are those of nine benchmarks, and no
package that this library can depend on brings them. `probes.choices` measures them for those who have them.
"""

from __future__ import annotations

from loopverify.claims.claim import Claim, sentence
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import PER_LOOP_RAW, PER_LOOP_RMSNORM, Condition
from loopverify.claims.p1.published import by_size, entry

__all__ = ["TABLE_7"]

_QUESTIONS = "the questions of the nine benchmarks of Table 7, which come with no package"
_RAW, _RMSNORM = PER_LOOP_RAW, PER_LOOP_RMSNORM


def _choices(
    name: str, metric: str, effect: str, row: str, *, left: Condition, right: Condition, least: float, percent: bool
) -> Claim:
    """The paper's change is that of raw over RMSNorm."""
    scale = (1 if left is _RAW else -1) / (100 if percent else 1)
    return Claim(
        id=f"P1.T7.{name}",
        sentence=sentence(f"on multiple-choice questions, {left.words} {effect} than {right.words}"),
        source="P1, Table 7",
        metric=metric,
        form=left.exceeds(right, by="difference", least=least),
        published=by_size(lambda size: scale * entry("T7", size, row, "change")),
        needs=_QUESTIONS,
    )


def _accuracy(left: Condition, right: Condition) -> Claim:
    return _choices(
        f"accuracy.{left.short}",
        "choice_accuracy",
        f"is at most {limits.T7_MOST_ACCURACY_LOST:g} less accurate",
        "lennorm_acc_macro",
        left=left,
        right=right,
        least=-limits.T7_MOST_ACCURACY_LOST,
        percent=True,
    )


TABLE_7: tuple[Claim, ...] = (
    _choices(
        "nll",
        "choice_nll",
        f"assigns the choices at least {limits.T7_LEAST_SCORE:g} nats per token more NLL",
        "candidate_nll",
        left=_RMSNORM,
        right=_RAW,
        least=limits.T7_LEAST_SCORE,
        percent=False,
    ),
    _choices(
        "margin",
        "choice_margin",
        f"prefers the gold choice by at least {limits.T7_LEAST_SCORE:g} nats per token more",
        "gold_margin",
        left=_RAW,
        right=_RMSNORM,
        least=limits.T7_LEAST_SCORE,
        percent=False,
    ),
    _choices(
        "probability",
        "choice_gold_probability",
        f"gives the gold choice at least {limits.T7_LEAST_PROBABILITY:g} more probability",
        "gold_prob_pct",
        left=_RAW,
        right=_RMSNORM,
        least=limits.T7_LEAST_PROBABILITY,
        percent=True,
    ),
    _accuracy(_RAW, _RMSNORM),
    _accuracy(_RMSNORM, _RAW),
)
