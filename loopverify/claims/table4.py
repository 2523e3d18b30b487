"""Table 4 of Sharma & Vu 2026 (section 5): what happens when the loops after the first may not grow the state.

Each clamp is two claims: that there was growth to take away, without which the second says nothing, and that taking it
away hardly changes the loss.
"""

from __future__ import annotations

from typing import Literal

from loopverify.claims import paper
from loopverify.claims.claim import Bound, Claim
from loopverify.claims.words import WORDS, sentence

__all__ = ["TABLE_4"]

MOST_NORM_LEFT = 0.8
"""Clamped over free ‖H_4‖₂; the paper has 0.40 to 0.55."""
MOST_CHANGE = 0.02
"""|ΔCE| in nats a token; the paper has 0.0004 to 0.0055."""

_T4 = "P1.T4_radial_clamp"


def _clamp(readout: str, what: Literal["growth", "cheap"]) -> Claim:
    condition = f"per_loop/{readout}"
    metric, column, value, told = {
        "growth": (
            "clamp_norm_ratio",
            "norm_ratio",
            MOST_NORM_LEFT,
            f"grows past its first loop: held at the scale of that loop, its final norm is at most {MOST_NORM_LEFT:g} "
            "times as large",
        ),
        "cheap": (
            "clamp_abs_delta_ce",
            "delta_ce",
            MOST_CHANGE,
            "does not need that growth: held at the scale of its first loop, its loss moves by at most "
            f"{MOST_CHANGE:g} nats a token",
        ),
    }[what]
    return Claim(
        id=f"P1.T4.clamp.{readout}.{what}",
        sentence=sentence(f"{WORDS[condition]} {told}"),
        source="P1, Table 4",
        metric=metric,
        form=Bound(condition=condition, side="at most", value=value),
        published=paper.by_size(lambda size: paper.entry(_T4, readout, size, column)),
    )


TABLE_4: tuple[Claim, ...] = (
    _clamp("rmsnorm", "growth"),
    _clamp("rmsnorm", "cheap"),
    _clamp("raw", "growth"),
    _clamp("raw", "cheap"),
    _clamp("final_only", "growth"),
    _clamp("final_only", "cheap"),
)
