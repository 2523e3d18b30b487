"""Table 4 of Sharma & Vu 2026 (section 5): what happens when the loops after the first may not grow the state.

Each clamp is two claims: that there was growth to remove, without which the second says nothing, and that removing it
hardly changes the loss.
"""

from __future__ import annotations

from functools import partial

from loopverify.claims.claim import Claim
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import PER_LOOP_FINAL_ONLY, PER_LOOP_RAW, PER_LOOP_RMSNORM
from loopverify.claims.p1.published import column
from loopverify.claims.template import Condition, claims

__all__ = ["TABLE_4"]

_claims = partial(claims, source="P1, Table 4")


def _clamp(condition: Condition) -> tuple[Claim, ...]:
    return (
        *_claims(
            "P1.T4.clamp.{0.short}.growth",
            "{0} grows past its first loop: held at the scale of that loop, its final norm is at most {limit:g} times "
            "as large",
            condition,
            form=("at most", limits.T4_MOST_NORM_LEFT),
            metric="clamp_norm_ratio",
            published=column("T4", "norm_ratio"),
        ),
        *_claims(
            "P1.T4.clamp.{0.short}.cheap",
            "{0} does not need that growth: held at the scale of its first loop, its loss moves by at most {limit:g} "
            "nats per token",
            condition,
            form=("at most", limits.T4_MOST_CHANGE),
            metric="clamp_abs_delta_ce",
            published=column("T4", "delta_ce"),
        ),
    )


TABLE_4: tuple[Claim, ...] = (*_clamp(PER_LOOP_RMSNORM), *_clamp(PER_LOOP_RAW), *_clamp(PER_LOOP_FINAL_ONLY))
