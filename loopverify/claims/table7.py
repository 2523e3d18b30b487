"""Table 7 of Sharma & Vu 2026 (appendix 11.2): multiple choice by the likelihood of continuations.

Nothing here can be answered by a model of regex tokens on the text of a preset: the questions are those of nine
benchmarks, and no package that this library can depend on brings them. `measures.choices` measures whoever has them.
"""

from __future__ import annotations

from typing import Literal

from loopverify.claims import paper
from loopverify.claims.claim import Claim, Comparison
from loopverify.claims.words import WORDS, sentence

__all__ = ["TABLE_7"]

LEAST_SCORE = 0.01
"""Nats a token, of the choices' NLL and of the gold margin; the paper has 0.056 and 0.040."""
LEAST_PROBABILITY = 0.001
"""Probability of the gold choice; the paper has 0.0047."""
MOST_ACCURACY = 0.01
"""Macro accuracy that either readout may be ahead; the paper has 0.0016."""

_T7 = "P1.T7_downstream_19169_pairs"
_RAW, _RMSNORM = "per_loop/raw", "per_loop/rmsnorm"
_QUESTIONS = "the questions of the nine benchmarks of Table 7, which come with no package"


def _choices(
    name: str, metric: str, told: str, better: Literal["raw", "rmsnorm"], least: float, effect: float
) -> Claim:
    left, right = (_RAW, _RMSNORM) if better == "raw" else (_RMSNORM, _RAW)
    return Claim(
        id=f"P1.T7.{name}",
        sentence=sentence(f"on multiple-choice questions, {WORDS[left]} {told} than {WORDS[right]}"),
        source="P1, Table 7",
        metric=metric,
        form=Comparison(left=left, right=right, by="difference", least=least),
        published={"1.4b": effect},
        needs=_QUESTIONS,
    )


def _change(row: str) -> float:
    return paper.entry(_T7, row, "change")


TABLE_7: tuple[Claim, ...] = (
    _choices(
        "nll",
        "choice_nll",
        f"assigns the choices at least {LEAST_SCORE:g} nats a token more NLL",
        "rmsnorm",
        LEAST_SCORE,
        -_change("candidate_nll"),
    ),
    _choices(
        "margin",
        "choice_margin",
        f"prefers the gold choice by at least {LEAST_SCORE:g} nats a token more",
        "raw",
        LEAST_SCORE,
        _change("gold_margin"),
    ),
    _choices(
        "probability",
        "choice_gold_probability",
        f"gives the gold choice at least {LEAST_PROBABILITY:g} more probability",
        "raw",
        LEAST_PROBABILITY,
        _change("gold_prob_pct") / 100,
    ),
    _choices(
        "accuracy.raw",
        "choice_accuracy",
        f"is at most {MOST_ACCURACY:g} less accurate",
        "raw",
        -MOST_ACCURACY,
        _change("lennorm_acc_macro") / 100,
    ),
    _choices(
        "accuracy.rmsnorm",
        "choice_accuracy",
        f"is at most {MOST_ACCURACY:g} less accurate",
        "rmsnorm",
        -MOST_ACCURACY,
        -_change("lennorm_acc_macro") / 100,
    ),
)
