"""Table 13 of Sharma & Vu 2026 (section 6, appendix 17): how many loops a calibrated halting rule spends.

Confidence is the mean logit margin of a sequence; the threshold is the smallest that keeps perplexity within 1 % of all
four loops on one half of the sequences, and everything is measured on the other half.
"""

from __future__ import annotations

from loopverify.claims import paper
from loopverify.claims.claim import Bound, Claim, Comparison
from loopverify.claims.words import CONTROLLED, WORDS, sentence

__all__ = ["TABLE_13"]

MOST_LOOPS = 1.1
"""Average loops of a model that does not use its depth; the paper has 1.00."""
LEAST_MORE_LOOPS = 0.3
"""Average loops more of a model that does; the paper has 0.76 to 1.60."""
MOST_OVER_BUDGET = 1.02
"""Dynamic over fixed perplexity on sequences that the threshold was not fit to; the paper has 1.00 to 1.01."""

_T13 = "P1.T13_dynamic_halting"
_HIDDEN = "per_loop/rmsnorm"


def _spends_more(name: str) -> Claim:
    return Claim(
        id=f"P1.T13.loops.{name}.vs_rmsnorm",
        sentence=sentence(
            f"{WORDS[CONTROLLED[name]]} spends at least {LEAST_MORE_LOOPS:g} loops a sequence more "
            f"than {WORDS[_HIDDEN]}"
        ),
        source="P1, Table 13",
        metric="halting_loops",
        form=Comparison(left=CONTROLLED[name], right=_HIDDEN, by="difference", least=LEAST_MORE_LOOPS),
        published=paper.by_size(
            lambda size: paper.entry(_T13, name, size, "avg_loops") - paper.entry(_T13, "rmsnorm", size, "avg_loops")
        ),
    )


def _in_budget(name: str, condition: str) -> Claim:
    return Claim(
        id=f"P1.T13.budget.{name}",
        sentence=sentence(
            f"halting costs {WORDS[condition]} at most a factor of {MOST_OVER_BUDGET:g} in perplexity on new sequences"
        ),
        source="P1, Table 13",
        metric="halting_ppl_ratio",
        form=Bound(condition=condition, side="at most", value=MOST_OVER_BUDGET),
        published=paper.by_size(
            lambda size: paper.entry(_T13, name, size, "ppl_dynamic") / paper.entry(_T13, name, size, "ppl_fixed_K4")
        ),
    )


TABLE_13: tuple[Claim, ...] = (
    Claim(
        id="P1.T13.loops.rmsnorm",
        sentence=sentence(f"{WORDS[_HIDDEN]} halts after {MOST_LOOPS:g} loops a sequence or fewer"),
        source="P1, Table 13",
        metric="halting_loops",
        form=Bound(condition=_HIDDEN, side="at most", value=MOST_LOOPS),
        published=paper.by_size(lambda size: paper.entry(_T13, "rmsnorm", size, "avg_loops")),
    ),
    *(_spends_more(name) for name in CONTROLLED),
    _in_budget("rmsnorm", _HIDDEN),
    *(_in_budget(name, condition) for name, condition in CONTROLLED.items()),
)
