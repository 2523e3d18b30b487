"""Table 8 of Sharma & Vu 2026 (appendix 11.3): quality and speed of two readouts at equal depth.

The paper's two models are of 1.4B parameters and normalize between loops; here the table is asked of the main ablation.
Speed is a ratio taken in turns on one machine.
"""

from __future__ import annotations

from typing import Literal

from loopverify.claims import paper
from loopverify.claims.claim import Bound, Claim, Comparison
from loopverify.claims.words import WORDS, sentence

__all__ = ["TABLE_8"]

LEAST_COST = 0.005
"""Nats a token by which RMSNorm is worse than raw at every depth; the paper has 0.016 to 0.017."""
LEAST_SPEED, MOST_SPEED = 0.9, 1.1
"""Tokens a second of the raw readout over those of RMSNorm; the paper has 1.006."""

_T8 = "P1.T8_fixed_K_throughput_1.4b"
_RAW, _RMSNORM = "per_loop/raw", "per_loop/rmsnorm"


def _quality(loop: int) -> Claim:
    return Claim(
        id=f"P1.T8.quality.K{loop}",
        sentence=sentence(
            f"{WORDS[_RMSNORM]} is at least {LEAST_COST:g} nats a token worse at exit {loop} than {WORDS[_RAW]}"
        ),
        source="P1, Table 8",
        metric=f"ce@{loop}",
        form=Comparison(left=_RMSNORM, right=_RAW, by="difference", least=LEAST_COST),
        published={"1.4b": paper.entry(_T8, "baseline", f"K{loop}", "ce") - paper.entry(_T8, "raw", f"K{loop}", "ce")},
    )


def _speed(side: Literal["at least", "at most"]) -> Claim:
    value, told = (LEAST_SPEED, "slower") if side == "at least" else (MOST_SPEED, "faster")
    return Claim(
        id=f"P1.T8.speed.raw.no_{told}",
        sentence=sentence(
            f"at four loops, {WORDS[_RAW]} is no {told} than RMSNorm: {side} {value:g} times its tokens a second"
        ),
        source="P1, Table 8",
        metric="timing_vs_rmsnorm@4",
        form=Bound(condition=_RAW, side=side, value=value),
        published={
            "1.4b": paper.entry(_T8, "raw", "K4", "tokens_per_s") / paper.entry(_T8, "baseline", "K4", "tokens_per_s")
        },
    )


TABLE_8: tuple[Claim, ...] = (
    *(_quality(loop) for loop in (1, 2, 3, 4)),
    _speed("at least"),
    _speed("at most"),
)
