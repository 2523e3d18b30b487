"""Table 4 of Sharma & Vu 2026 (section 5): what happens when the loops after the first may not grow the state.

Each clamp is two claims: that there was growth to take away, without which the second says nothing, and that taking it
away hardly changes the loss.
"""

from __future__ import annotations

from loopverify.claims.claim import Claim, sentence
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import PER_LOOP_FINAL_ONLY, PER_LOOP_RAW, PER_LOOP_RMSNORM, Condition
from loopverify.claims.p1.published import by_size, entry

__all__ = ["TABLE_4"]


def _growth(condition: Condition) -> Claim:
    return Claim(
        id=f"P1.T4.clamp.{condition.short}.growth",
        sentence=sentence(
            f"{condition.words} grows past its first loop: held at the scale of that loop, its final norm is at most "
            f"{limits.T4_MOST_NORM_LEFT:g} times as large"
        ),
        source="P1, Table 4",
        metric="clamp_norm_ratio",
        form=condition.at_most(limits.T4_MOST_NORM_LEFT),
        published=by_size(lambda size: entry("T4", size, condition, "norm_ratio")),
    )


def _cheap(condition: Condition) -> Claim:
    return Claim(
        id=f"P1.T4.clamp.{condition.short}.cheap",
        sentence=sentence(
            f"{condition.words} does not need that growth: held at the scale of its first loop, its loss moves by at "
            f"most {limits.T4_MOST_CHANGE:g} nats per token"
        ),
        source="P1, Table 4",
        metric="clamp_abs_delta_ce",
        form=condition.at_most(limits.T4_MOST_CHANGE),
        published=by_size(lambda size: entry("T4", size, condition, "delta_ce")),
    )


TABLE_4: tuple[Claim, ...] = tuple(
    claim
    for condition in (PER_LOOP_RMSNORM, PER_LOOP_RAW, PER_LOOP_FINAL_ONLY)
    for claim in (_growth(condition), _cheap(condition))
)
