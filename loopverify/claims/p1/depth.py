"""The value of depth: Tables 5, 11 and 14, and Figures 1 and 7, of Sharma & Vu 2026 (sections 4 and 6).

CE(k) is exit k of a run of the trained loops, except in Figure 7, whose points are runs of K loops. That per-loop exits
are usable and terminal ones are not is among the claims of Table 2.
"""

from __future__ import annotations

import math

from loopverify.claims.claim import Claim
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import (
    CONTROLLED,
    INTER_LOOP_NORM,
    PER_LOOP_RAW,
    PER_LOOP_RMSNORM,
    TERMINAL_RAW,
    TERMINAL_RMSNORM,
)
from loopverify.claims.p1.published import column, entry, exit_gap, log_ratio
from loopverify.claims.p1.table3 import float32_floor
from loopverify.claims.template import Condition, claims

__all__ = ["FIGURE_7", "TABLE_5", "TABLE_11", "TABLE_14"]

_GAP = "ce@1-ce@4"


def _gain(size: str, condition: Condition) -> float:
    """CE(1) − CE(4) by the perplexities of Table 5, which Table 11 rounds to 0.01."""
    return math.log(entry("T5", size, condition, "K1") / entry("T5", size, condition, "K4"))


def _fails(exit_: int, *conditions: Condition) -> tuple[Claim, ...]:
    return claims(
        f"P1.T14.fails.{{0.short}}.exit_{exit_}",
        f"{{0}} is at least {{limit:g}} nats per token worse at exit {exit_} than at exit 4",
        *conditions,
        form=("at least", limits.T14_LEAST_FAILURE),
        metric=f"ce@{exit_}-ce@4",
        source="P1, Table 14",
        # The raw row is printed as '>27.6' and '>13.8': the published differences are lower bounds.
        published=lambda size, of: entry("T14", size, of, f"K{exit_}") - entry("T14", size, of, "K4"),
    )


def _monotone(loop: int) -> tuple[Claim, ...]:
    return claims(
        f"P1.T14.monotone.{{0.short}}.exit_{loop + 1}",
        f"{{0}} is no worse at exit {loop + 1} than at exit {loop}",
        TERMINAL_RMSNORM,
        form=("at least", limits.T14_LEAST_IMPROVEMENT),
        metric=f"ce@{loop}-ce@{loop + 1}",
        source="P1, Table 14",
        published=lambda size, of: entry("T14", size, of, f"K{loop}") - entry("T14", size, of, f"K{loop + 1}"),
    )


def _flat(name: str, metric: str, effect: str) -> tuple[Claim, ...]:
    return claims(
        f"P1.F7.{name}",
        f"{{0}} {effect} by at most {{limit:g}} nats per token",
        INTER_LOOP_NORM,
        form=("at most", limits.F7_MOST_OVERSHOOT),
        metric=metric,
        source="P1, appendix 19, Figure 7",
    )


TABLE_5: tuple[Claim, ...] = (
    *claims(
        "P1.T5.invariant.{0.short}",
        "{0} gains at most {limit:g} nats per token from all loops after the first",
        PER_LOOP_RMSNORM,
        form=("at most", limits.T5_MOST_GAIN),
        metric=_GAP,
        source="P1, Table 5",
        published=_gain,
    ),
    *claims(
        "P1.T5.depth.{0.short}",
        "{0} gains at least {limit:g} nats per token from its loops",
        *CONTROLLED,
        form=("at least", limits.T5_LEAST_GAIN),
        metric=_GAP,
        source="P1, Table 5",
        published=_gain,
    ),
    *claims(
        "P1.T5.depth.{0.short}.vs_rmsnorm",
        "{0} gains at least {limit:g} nats per token more from its loops than {1}",
        *((controlled, PER_LOOP_RMSNORM) for controlled in CONTROLLED),
        form=("difference", limits.T5_LEAST_GAIN),
        metric=_GAP,
        source="P1, Table 5",
        published=lambda size, left, right: _gain(size, left) - _gain(size, right),
    ),
    *claims(
        "P1.T5.first_exit.vs_{1.short}",
        "{0} is at least {limit:g} nats per token worse at its first exit than {1}",
        *((PER_LOOP_RMSNORM, controlled) for controlled in CONTROLLED),
        form=("difference", limits.T5_LEAST_FIRST_EXIT),
        metric="ce@1",
        source="P1, section 6, Table 5, Figure 4",
        published=log_ratio("T5", "K1"),
    ),
)

TABLE_11: tuple[Claim, ...] = (
    *claims(
        "P1.T11.exits.{1.short}",
        "the gap from the first to the last exit is at least {limit:g} nats per token larger under {0} than under {1}",
        (TERMINAL_RMSNORM, PER_LOOP_RMSNORM),
        (TERMINAL_RAW, PER_LOOP_RAW),
        form=("difference", limits.T11_LEAST_PLACEMENT),
        metric=_GAP,
        source="P1, Table 11, Figure 1",
        published=lambda size, left, right: exit_gap(size, left) - exit_gap(size, right),
    ),
    *claims(
        "P1.T11.radial.{0.slug}",
        "{0} hides the scale of the last state from its loss: the radial fraction of the gradient is at most {limit:g} "
        "times what rounding leaves",
        TERMINAL_RMSNORM,
        form=("at most", limits.T3_MOST_OF_FLOOR),
        metric="r_over_floor@4",
        source="P1, Table 11",
        published=lambda size, of: entry("T11", size, of, "r_K") / float32_floor(size),
    ),
    *claims(
        "P1.T11.radial.{0.slug}",
        "{0} shows its loss the scale of the last state: at least {limit:g} of the gradient is radial",
        TERMINAL_RAW,
        form=("at least", limits.T3_LEAST_VISIBLE),
        metric="r@4",
        source="P1, Table 11",
        published=column("T11", "r_K"),
    ),
)

TABLE_14: tuple[Claim, ...] = (
    *_fails(1, TERMINAL_RMSNORM, TERMINAL_RAW),
    *_fails(3, TERMINAL_RAW),
    *(claim for loop in (1, 2, 3) for claim in _monotone(loop)),
)

FIGURE_7: tuple[Claim, ...] = (
    *_flat("converged", "ce_run@3-ce_run@8", "has converged after three loops: five more improve it"),
    *_flat("overshoot", "ce_run@8-ce_run@4", "stays flat beyond its trained loops: a run of twice as many is worse"),
)
