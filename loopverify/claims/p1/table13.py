"""Table 13 of Sharma & Vu 2026 (section 6, appendix 17): how many loops a calibrated halting rule spends.

Confidence is the mean logit margin of a sequence; the threshold is the smallest that keeps perplexity within 1 % of all
four loops on one half of the sequences, and everything is measured on the other half.
"""

from __future__ import annotations

from loopverify.claims.claim import Claim, sentence
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import CONTROLLED, PER_LOOP_RMSNORM, Condition
from loopverify.claims.p1.published import by_size, entry

__all__ = ["TABLE_13"]

_HIDDEN = PER_LOOP_RMSNORM


def _spends_more(condition: Condition) -> Claim:
    return Claim(
        id=f"P1.T13.loops.{condition.short}.vs_rmsnorm",
        sentence=sentence(
            f"{condition.words} spends at least {limits.T13_LEAST_MORE_LOOPS:g} loops per sequence more "
            f"than {_HIDDEN.words}"
        ),
        source="P1, Table 13",
        metric="halting_loops",
        form=condition.exceeds(_HIDDEN, by="difference", least=limits.T13_LEAST_MORE_LOOPS),
        published=by_size(
            lambda size: entry("T13", size, condition, "avg_loops") - entry("T13", size, _HIDDEN, "avg_loops")
        ),
    )


def _in_budget(condition: Condition) -> Claim:
    return Claim(
        id=f"P1.T13.budget.{condition.short}",
        sentence=sentence(
            f"halting costs {condition.words} at most a factor of {limits.T13_MOST_OVER_BUDGET:g} in perplexity on "
            "new sequences"
        ),
        source="P1, Table 13",
        metric="halting_ppl_ratio",
        form=condition.at_most(limits.T13_MOST_OVER_BUDGET),
        published=by_size(
            lambda size: entry("T13", size, condition, "ppl_dynamic") / entry("T13", size, condition, "ppl_fixed_K4")
        ),
    )


TABLE_13: tuple[Claim, ...] = (
    Claim(
        id=f"P1.T13.loops.{_HIDDEN.short}",
        sentence=sentence(f"{_HIDDEN.words} halts after {limits.T13_MOST_LOOPS:g} loops per sequence or fewer"),
        source="P1, Table 13",
        metric="halting_loops",
        form=_HIDDEN.at_most(limits.T13_MOST_LOOPS),
        published=by_size(lambda size: entry("T13", size, _HIDDEN, "avg_loops")),
    ),
    *(_spends_more(condition) for condition in CONTROLLED),
    *(_in_budget(condition) for condition in (_HIDDEN, *CONTROLLED)),
)
