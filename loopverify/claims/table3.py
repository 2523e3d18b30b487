"""Table 3 of Sharma & Vu 2026 (section 5): how much of each exit's own gradient lies along its state.

Blind is told by the rounding floor 2·eps/√d of the dtype at hand, not by a number: the paper's 5e-9 is about half of
that of float32 at its widths. See `theory.visibility.floor`.
"""

from __future__ import annotations

import math
from typing import Literal

from loopverify.claims import paper
from loopverify.claims.claim import Bound, Claim, Comparison
from loopverify.claims.words import WORDS, sentence

__all__ = ["MOST_OF_FLOOR", "TABLE_3", "VISIBLE", "float32_floor"]

MOST_OF_FLOOR = 10.0
"""Radial fraction over the rounding floor of its dtype; the paper has 0.4 to 1.4 of that of float32."""
VISIBLE = 1e-3
"""Radial fraction of a readout that shows scale; the paper has 0.047 to 0.072."""
LEAST_CONTRAST = 1000.0
"""Ratio of radial fractions, raw over RMSNorm; the paper has 6e6 to 2e7."""

_T3 = "P1.T3_radial_gradient"
_PLACES = {"first": (1, "r_1"), "last": (4, "r_K")}


def float32_floor(size: str) -> float:
    """The rounding floor of a radial fraction in float32 at the width of one of the paper's models."""
    return 2 * 2.0**-23 / math.sqrt(paper.entry("setup", size, "d_model"))


def _radial(readout: str, place: Literal["first", "last"], *, visible: bool) -> Claim:
    condition, (loop, row) = f"per_loop/{readout}", _PLACES[place]
    told = (
        f"shows the {place} exit's gradient the scale of its state: at least {VISIBLE:g} of it is radial"
        if visible
        else f"hides scale from the {place} exit's gradient: its radial fraction is at most {MOST_OF_FLOOR:g} times "
        "what rounding leaves"
    )
    return Claim(
        id=f"P1.T3.radial.{readout}.{place}",
        sentence=sentence(f"{WORDS[condition]} {told}"),
        source="P1, Table 3",
        metric=f"r@{loop}" if visible else f"r_over_floor@{loop}",
        form=Bound(condition=condition, side="at least", value=VISIBLE)
        if visible
        else Bound(condition=condition, side="at most", value=MOST_OF_FLOOR),
        published=paper.by_size(
            lambda size: paper.entry(_T3, size, readout, row) / (1 if visible else float32_floor(size))
        ),
    )


def _contrast() -> Claim:
    raw, rmsnorm = "per_loop/raw", "per_loop/rmsnorm"
    return Claim(
        id="P1.T3.radial.raw.vs_rmsnorm",
        sentence=sentence(
            f"the radial fraction at the last exit of {WORDS[raw]} is at least {LEAST_CONTRAST:,g} times "
            f"that of {WORDS[rmsnorm]}"
        ),
        source="P1, Table 3",
        metric="r@4",
        form=Comparison(left=raw, right=rmsnorm, by="ratio", least=LEAST_CONTRAST),
        published=paper.by_size(
            lambda size: paper.entry(_T3, size, "raw", "r_K") / paper.entry(_T3, size, "rmsnorm", "r_K")
        ),
    )


TABLE_3: tuple[Claim, ...] = (
    _radial("rmsnorm", "first", visible=False),
    _radial("rmsnorm", "last", visible=False),
    _radial("raw", "first", visible=True),
    _radial("raw", "last", visible=True),
    _radial("final_only", "first", visible=True),
    _radial("final_only", "last", visible=False),
    _contrast(),
)
