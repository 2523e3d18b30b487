"""Table 8 of Sharma & Vu 2026 (appendix 11.3): quality and speed of two readouts at equal depth.

The paper's two models have 1.4B parameters and normalize between loops; here the table is judged on the main ablation.
Speed is a ratio of interleaved timings on one machine.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from loopverify.claims.claim import Claim
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import PER_LOOP_RAW, PER_LOOP_RMSNORM
from loopverify.claims.p1.published import difference, entry
from loopverify.claims.template import Condition, claims

__all__ = ["TABLE_8"]

_claims = partial(claims, source="P1, Table 8")


def _quality(loop: int) -> tuple[Claim, ...]:
    return _claims(
        f"P1.T8.quality.K{loop}",
        f"{{0}} is at least {{limit:g}} nats per token worse at exit {loop} than {{1}}",
        (PER_LOOP_RMSNORM, PER_LOOP_RAW),
        form=("difference", limits.T8_LEAST_COST),
        metric=f"ce@{loop}",
        published=difference("T8", f"ce_K{loop}"),
    )


def _speed(faster: str, kind: Literal["at least", "at most"], limit: float) -> tuple[Claim, ...]:
    def published(size: str, raw: Condition) -> float:
        return entry("T8", size, raw, "tokens_per_s_K4") / entry("T8", size, PER_LOOP_RMSNORM, "tokens_per_s_K4")

    return _claims(
        f"P1.T8.speed.raw.no_{faster}",
        f"at four loops, {{0}} is no {faster} than RMSNorm: {kind} {{limit:g}} times its tokens per second",
        PER_LOOP_RAW,
        form=(kind, limit),
        metric="timing_vs_rmsnorm@4",
        published=published,
    )


TABLE_8: tuple[Claim, ...] = (
    *(claim for loop in (1, 2, 3, 4) for claim in _quality(loop)),
    *_speed("slower", "at least", limits.T8_LEAST_SPEED),
    *_speed("faster", "at most", limits.T8_MOST_SPEED),
)
