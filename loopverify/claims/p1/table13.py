"""Table 13 of Sharma & Vu 2026 (section 6, appendix 17): how many loops a calibrated halting rule spends.

Confidence is the mean logit margin of a sequence. The threshold is the smallest that keeps perplexity within 1 % of all
four loops on one half of the sequences; everything is measured on the other half.
"""

from __future__ import annotations

from functools import partial

from loopverify.claims.claim import Claim
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import CONTROLLED, PER_LOOP_RMSNORM
from loopverify.claims.p1.published import column, difference, entry
from loopverify.claims.template import claims

__all__ = ["TABLE_13"]

_claims = partial(claims, source="P1, Table 13")

TABLE_13: tuple[Claim, ...] = (
    *_claims(
        "P1.T13.loops.{0.short}",
        "{0} halts after {limit:g} loops per sequence or fewer",
        PER_LOOP_RMSNORM,
        form=("at most", limits.T13_MOST_LOOPS),
        metric="halting_loops",
        published=column("T13", "avg_loops"),
    ),
    *_claims(
        "P1.T13.loops.{0.short}.vs_rmsnorm",
        "{0} spends at least {limit:g} loops per sequence more than {1}",
        *((controlled, PER_LOOP_RMSNORM) for controlled in CONTROLLED),
        form=("difference", limits.T13_LEAST_MORE_LOOPS),
        metric="halting_loops",
        published=difference("T13", "avg_loops"),
    ),
    *_claims(
        "P1.T13.budget.{0.short}",
        "halting costs {0} at most a factor of {limit:g} in perplexity on new sequences",
        *(PER_LOOP_RMSNORM, *CONTROLLED),
        form=("at most", limits.T13_MOST_OVER_BUDGET),
        metric="halting_ppl_ratio",
        published=lambda size, of: entry("T13", size, of, "ppl_dynamic") / entry("T13", size, of, "ppl_fixed_K4"),
    ),
)
