"""What depth is worth: Tables 5, 11 and 14, and Figures 1 and 7, of Sharma & Vu 2026 (sections 4 and 6).

CE(k) is exit k of a run of the trained loops, except in Figure 7, whose points are runs of K loops. That per-loop exits
are usable and terminal ones are not is among the claims of Table 2.
"""

from __future__ import annotations

import math

from loopverify.claims.claim import Claim, sentence
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import (
    CONTROLLED,
    INTER_LOOP_NORM,
    PER_LOOP_RAW,
    PER_LOOP_RMSNORM,
    TERMINAL_RAW,
    TERMINAL_RMSNORM,
    Condition,
)
from loopverify.claims.p1.published import by_size, entry, exit_gap
from loopverify.claims.p1.table3 import float32_floor

__all__ = ["FIGURE_7", "TABLE_5", "TABLE_11", "TABLE_14"]

_GAP = "ce@1-ce@4"


def _gain(condition: Condition, size: str) -> float:
    """CE(1) − CE(4) by the perplexities of Table 5, which Table 11 rounds to 0.01."""
    return math.log(entry("T5", size, condition, "K1") / entry("T5", size, condition, "K4"))


def _invariant(condition: Condition) -> Claim:
    return Claim(
        id=f"P1.T5.invariant.{condition.short}",
        sentence=sentence(
            f"{condition.words} gains at most {limits.T5_MOST_GAIN:g} nats per token from all loops after the first"
        ),
        source="P1, Table 5",
        metric=_GAP,
        form=condition.at_most(limits.T5_MOST_GAIN),
        published=by_size(lambda size: _gain(condition, size)),
    )


def _uses_depth(condition: Condition) -> Claim:
    return Claim(
        id=f"P1.T5.depth.{condition.short}",
        sentence=sentence(f"{condition.words} gains at least {limits.T5_LEAST_GAIN:g} nats per token from its loops"),
        source="P1, Table 5",
        metric=_GAP,
        form=condition.at_least(limits.T5_LEAST_GAIN),
        published=by_size(lambda size: _gain(condition, size)),
    )


def _uses_more_depth(condition: Condition) -> Claim:
    hidden = PER_LOOP_RMSNORM
    return Claim(
        id=f"P1.T5.depth.{condition.short}.vs_rmsnorm",
        sentence=sentence(
            f"{condition.words} gains at least {limits.T5_LEAST_GAIN:g} nats per token more from its loops "
            f"than {hidden.words}"
        ),
        source="P1, Table 5",
        metric=_GAP,
        form=condition.exceeds(hidden, by="difference", least=limits.T5_LEAST_GAIN),
        published=by_size(lambda size: _gain(condition, size) - _gain(hidden, size)),
    )


def _first_exit(condition: Condition) -> Claim:
    hidden = PER_LOOP_RMSNORM
    return Claim(
        id=f"P1.T5.first_exit.vs_{condition.short}",
        sentence=sentence(
            f"{hidden.words} is at least {limits.T5_LEAST_FIRST_EXIT:g} nats per token worse at its first exit "
            f"than {condition.words}"
        ),
        source="P1, section 6, Table 5, Figure 4",
        metric="ce@1",
        form=hidden.exceeds(condition, by="difference", least=limits.T5_LEAST_FIRST_EXIT),
        published=by_size(lambda size: math.log(entry("T5", size, hidden, "K1") / entry("T5", size, condition, "K1"))),
    )


def _placement(terminal: Condition, per_loop: Condition) -> Claim:
    return Claim(
        id=f"P1.T11.exits.{per_loop.short}",
        sentence=sentence(
            f"the gap from the first to the last exit is at least {limits.T11_LEAST_PLACEMENT:g} nats per token larger "
            f"under {terminal.words} than under {per_loop.words}"
        ),
        source="P1, Table 11, Figure 1",
        metric=_GAP,
        form=terminal.exceeds(per_loop, by="difference", least=limits.T11_LEAST_PLACEMENT),
        published=by_size(lambda size: exit_gap(terminal, size) - exit_gap(per_loop, size)),
    )


def _terminal_hidden(condition: Condition) -> Claim:
    return Claim(
        id=f"P1.T11.radial.{condition.slug}",
        sentence=sentence(
            f"{condition.words} hides the scale of the last state from its loss: the radial fraction of the gradient "
            f"is at most {limits.T3_MOST_OF_FLOOR:g} times what rounding leaves"
        ),
        source="P1, Table 11",
        metric="r_over_floor@4",
        form=condition.at_most(limits.T3_MOST_OF_FLOOR),
        published=by_size(lambda size: entry("T11", size, condition, "r_K") / float32_floor(size)),
    )


def _terminal_visible(condition: Condition) -> Claim:
    return Claim(
        id=f"P1.T11.radial.{condition.slug}",
        sentence=sentence(
            f"{condition.words} shows its loss the scale of the last state: at least {limits.T3_LEAST_VISIBLE:g} of "
            "the gradient is radial"
        ),
        source="P1, Table 11",
        metric="r@4",
        form=condition.at_least(limits.T3_LEAST_VISIBLE),
        published=by_size(lambda size: entry("T11", size, condition, "r_K")),
    )


def _fails(condition: Condition, exit_: int) -> Claim:
    return Claim(
        id=f"P1.T14.fails.{condition.short}.exit_{exit_}",
        sentence=sentence(
            f"{condition.words} is at least {limits.T14_LEAST_FAILURE:g} nats per token worse at exit {exit_} "
            "than at exit 4"
        ),
        source="P1, Table 14",
        metric=f"ce@{exit_}-ce@4",
        form=condition.at_least(limits.T14_LEAST_FAILURE),
        # The raw row is printed as '>27.6' and '>13.8': the published differences are the least that they can be.
        published=by_size(
            lambda size: entry("T14", size, condition, f"K{exit_}") - entry("T14", size, condition, "K4")
        ),
    )


def _monotone(condition: Condition, loop: int) -> Claim:
    return Claim(
        id=f"P1.T14.monotone.{condition.short}.exit_{loop + 1}",
        sentence=sentence(f"{condition.words} is no worse at exit {loop + 1} than at exit {loop}"),
        source="P1, Table 14",
        metric=f"ce@{loop}-ce@{loop + 1}",
        form=condition.at_least(limits.T14_LEAST_IMPROVEMENT),
        published=by_size(
            lambda size: entry("T14", size, condition, f"K{loop}") - entry("T14", size, condition, f"K{loop + 1}")
        ),
    )


def _flat(name: str, metric: str, effect: str) -> Claim:
    return Claim(
        id=f"P1.F7.{name}",
        sentence=sentence(f"{INTER_LOOP_NORM.words} {effect} by at most {limits.F7_MOST_OVERSHOOT:g} nats per token"),
        source="P1, appendix 19, Figure 7",
        metric=metric,
        form=INTER_LOOP_NORM.at_most(limits.F7_MOST_OVERSHOOT),
    )


TABLE_5: tuple[Claim, ...] = (
    _invariant(PER_LOOP_RMSNORM),
    *(_uses_depth(condition) for condition in CONTROLLED),
    *(_uses_more_depth(condition) for condition in CONTROLLED),
    *(_first_exit(condition) for condition in CONTROLLED),
)

TABLE_11: tuple[Claim, ...] = (
    _placement(TERMINAL_RMSNORM, PER_LOOP_RMSNORM),
    _placement(TERMINAL_RAW, PER_LOOP_RAW),
    _terminal_hidden(TERMINAL_RMSNORM),
    _terminal_visible(TERMINAL_RAW),
)

TABLE_14: tuple[Claim, ...] = (
    _fails(TERMINAL_RMSNORM, 1),
    _fails(TERMINAL_RAW, 1),
    _fails(TERMINAL_RAW, 3),
    _monotone(TERMINAL_RMSNORM, 1),
    _monotone(TERMINAL_RMSNORM, 2),
    _monotone(TERMINAL_RMSNORM, 3),
)

FIGURE_7: tuple[Claim, ...] = (
    _flat("converged", "ce_run@3-ce_run@8", "has converged after three loops: five more improve it"),
    _flat("overshoot", "ce_run@8-ce_run@4", "stays flat beyond its trained loops: a run of twice as many is worse"),
)
