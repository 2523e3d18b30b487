"""When a token leaves early, and what later tokens find in the loops that it has not run.

A token that leaves after loop e has no keys in the loops e + 1..K, to which later tokens that run deeper must attend.
The paper leaves this open (Sharma & Vu 2026, appendix 17). Three rules, from exact to cheap:

- `recompute`: the loops are run when a later token first needs them, all tokens that are behind in one chunk. A token
  that runs to K then sees what it would see without exits; only the loops that nobody asks for are saved.
- `copy`: the keys and values of loop e serve the later loops, layer by layer.
- `propagate`: keys and values of the later loops are those of the state H_e as it left (one projection a layer).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loopverify.arguments import check_number
from loopverify.errors import unknown
from loopverify.halting.confidence import Score, named

__all__ = ["MISSING", "EarlyExit"]

MISSING = ("recompute", "copy", "propagate")


@dataclass(frozen=True, kw_only=True)
class EarlyExit:
    """A token leaves after the first loop whose confidence is above a threshold, and at the last in any case."""

    threshold: float
    """See `halting.exit_table(..., by="token")` and `halting.calibrate` for one that keeps a perplexity budget."""
    score: str | Score = "margin"
    """A name of `halting.SCORES`, or a score of `halting.confidence`."""
    missing: Literal["recompute", "copy", "propagate"] = "recompute"

    def __post_init__(self) -> None:
        named(self.score)
        if self.missing not in MISSING:
            raise unknown("rule for missing keys", self.missing, MISSING)
        check_number("threshold", self.threshold, "a confidence that an exit has to be above")
