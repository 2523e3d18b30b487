"""Table 8 of Sharma & Vu 2026 (appendix 11.3): quality and speed of two readouts at equal depth.

The paper's two models have 1.4B parameters and normalize between loops; here the table is judged on the main ablation.
Speed is a ratio of interleaved timings on one machine.
"""

from __future__ import annotations

from typing import Literal

from loopverify.claims.claim import Bound, Claim, sentence
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import PER_LOOP_RAW, PER_LOOP_RMSNORM
from loopverify.claims.p1.published import by_size, entry

__all__ = ["TABLE_8"]


def _quality(loop: int) -> Claim:
    rmsnorm, raw = PER_LOOP_RMSNORM, PER_LOOP_RAW
    return Claim(
        id=f"P1.T8.quality.K{loop}",
        sentence=sentence(
            f"{rmsnorm.words} is at least {limits.T8_LEAST_COST:g} nats per token worse at exit {loop} than {raw.words}"
        ),
        source="P1, Table 8",
        metric=f"ce@{loop}",
        form=rmsnorm.exceeds(raw, by="difference", least=limits.T8_LEAST_COST),
        published=by_size(
            lambda size: entry("T8", size, rmsnorm, f"ce_K{loop}") - entry("T8", size, raw, f"ce_K{loop}")
        ),
    )


def _speed(side: Literal["at least", "at most"]) -> Claim:
    limit, faster = (limits.T8_LEAST_SPEED, "slower") if side == "at least" else (limits.T8_MOST_SPEED, "faster")
    return Claim(
        id=f"P1.T8.speed.raw.no_{faster}",
        sentence=sentence(
            f"at four loops, {PER_LOOP_RAW.words} is no {faster} than RMSNorm: {side} {limit:g} times its tokens per "
            "second"
        ),
        source="P1, Table 8",
        metric="timing_vs_rmsnorm@4",
        form=Bound(condition=PER_LOOP_RAW.name, side=side, value=limit),
        published=by_size(
            lambda size: (
                entry("T8", size, PER_LOOP_RAW, "tokens_per_s_K4")
                / entry("T8", size, PER_LOOP_RMSNORM, "tokens_per_s_K4")
            )
        ),
    )


TABLE_8: tuple[Claim, ...] = (
    *(_quality(loop) for loop in (1, 2, 3, 4)),
    _speed("at least"),
    _speed("at most"),
)
