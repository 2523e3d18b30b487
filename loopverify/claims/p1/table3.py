"""Table 3 of Sharma & Vu 2026 (section 5): how much of each exit's own gradient lies along its state.

What counts as blind depends on the rounding floor 2·eps/√d of the dtype at hand, and is no fixed number: the paper's
5e-9 is about half of that of float32 at its widths. See `theory.visibility.floor`.
"""

from __future__ import annotations

import math
from typing import Literal

from loopverify.claims.claim import Claim, sentence
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import PER_LOOP_FINAL_ONLY, PER_LOOP_RAW, PER_LOOP_RMSNORM, Condition
from loopverify.claims.p1.published import by_size, entry, tables

__all__ = ["TABLE_3", "float32_floor"]

_PLACES = {"first": (1, "r_1"), "last": (4, "r_K")}


def float32_floor(size: str) -> float:
    """The rounding floor of a radial fraction in float32 at the width of one of the paper's models."""
    return 2 * 2.0**-23 / math.sqrt(tables()["setup"][size]["d_model"])


def _visible(condition: Condition, place: Literal["first", "last"]) -> Claim:
    loop, column = _PLACES[place]
    return Claim(
        id=f"P1.T3.radial.{condition.short}.{place}",
        sentence=sentence(
            f"{condition.words} shows the {place} exit's gradient the scale of its state: "
            f"at least {limits.T3_LEAST_VISIBLE:g} of it is radial"
        ),
        source="P1, Table 3",
        metric=f"r@{loop}",
        form=condition.at_least(limits.T3_LEAST_VISIBLE),
        published=by_size(lambda size: entry("T3", size, condition, column)),
    )


def _hidden(condition: Condition, place: Literal["first", "last"]) -> Claim:
    loop, column = _PLACES[place]
    return Claim(
        id=f"P1.T3.radial.{condition.short}.{place}",
        sentence=sentence(
            f"{condition.words} hides scale from the {place} exit's gradient: its radial fraction is at most "
            f"{limits.T3_MOST_OF_FLOOR:g} times what rounding leaves"
        ),
        source="P1, Table 3",
        metric=f"r_over_floor@{loop}",
        form=condition.at_most(limits.T3_MOST_OF_FLOOR),
        published=by_size(lambda size: entry("T3", size, condition, column) / float32_floor(size)),
    )


def _contrast(raw: Condition, rmsnorm: Condition) -> Claim:
    return Claim(
        id="P1.T3.radial.raw.vs_rmsnorm",
        sentence=sentence(
            f"the radial fraction at the last exit of {raw.words} is at least {limits.T3_LEAST_CONTRAST:,g} times "
            f"that of {rmsnorm.words}"
        ),
        source="P1, Table 3",
        metric="r@4",
        form=raw.exceeds(rmsnorm, by="ratio", least=limits.T3_LEAST_CONTRAST),
        published=by_size(lambda size: entry("T3", size, raw, "r_K") / entry("T3", size, rmsnorm, "r_K")),
    )


TABLE_3: tuple[Claim, ...] = (
    _hidden(PER_LOOP_RMSNORM, "first"),
    _hidden(PER_LOOP_RMSNORM, "last"),
    _visible(PER_LOOP_RAW, "first"),
    _visible(PER_LOOP_RAW, "last"),
    _visible(PER_LOOP_FINAL_ONLY, "first"),
    _hidden(PER_LOOP_FINAL_ONLY, "last"),
    _contrast(PER_LOOP_RAW, PER_LOOP_RMSNORM),
)
