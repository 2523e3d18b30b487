"""Table 3 of Sharma & Vu 2026 (section 5): how much of each exit's own gradient lies along its state.

A readout counts as blind relative to the rounding floor 2·eps/√d of the dtype, not by a fixed number: the paper's 5e-9
is about half of the floor of float32 at its widths. See `theory.visibility.floor`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

from loopverify.claims.claim import Claim
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import PER_LOOP_FINAL_ONLY, PER_LOOP_RAW, PER_LOOP_RMSNORM
from loopverify.claims.p1.published import column, entry, ratio, tables
from loopverify.claims.template import Condition, claims

__all__ = ["TABLE_3", "float32_floor"]

_PLACES = {"first": (1, "r_1"), "last": (4, "r_K")}
_claims = partial(claims, source="P1, Table 3")


def float32_floor(size: str) -> float:
    """The rounding floor of a radial fraction in float32 at the width of one of the paper's models."""
    return 2 * 2.0**-23 / math.sqrt(tables()["setup"][size]["d_model"])


def _visible(condition: Condition, place: Literal["first", "last"]) -> tuple[Claim, ...]:
    loop, name = _PLACES[place]
    return _claims(
        f"P1.T3.radial.{{0.short}}.{place}",
        f"{{0}} shows the {place} exit's gradient the scale of its state: at least {{limit:g}} of it is radial",
        condition,
        form=("at least", limits.T3_LEAST_VISIBLE),
        metric=f"r@{loop}",
        published=column("T3", name),
    )


def _hidden(condition: Condition, place: Literal["first", "last"]) -> tuple[Claim, ...]:
    loop, name = _PLACES[place]
    return _claims(
        f"P1.T3.radial.{{0.short}}.{place}",
        f"{{0}} hides scale from the {place} exit's gradient: its radial fraction is at most {{limit:g}} times what "
        "rounding leaves",
        condition,
        form=("at most", limits.T3_MOST_OF_FLOOR),
        metric=f"r_over_floor@{loop}",
        published=lambda size, of: entry("T3", size, of, name) / float32_floor(size),
    )


TABLE_3: tuple[Claim, ...] = (
    *_hidden(PER_LOOP_RMSNORM, "first"),
    *_hidden(PER_LOOP_RMSNORM, "last"),
    *_visible(PER_LOOP_RAW, "first"),
    *_visible(PER_LOOP_RAW, "last"),
    *_visible(PER_LOOP_FINAL_ONLY, "first"),
    *_hidden(PER_LOOP_FINAL_ONLY, "last"),
    *_claims(
        "P1.T3.radial.raw.vs_rmsnorm",
        "the radial fraction at the last exit of {0} is at least {limit:,g} times that of {1}",
        (PER_LOOP_RAW, PER_LOOP_RMSNORM),
        form=("ratio", limits.T3_LEAST_CONTRAST),
        metric="r@4",
        published=ratio("T3", "r_K"),
    ),
)
