"""What Table 2 of Sharma & Vu 2026 and its discussion (section 4) claim."""

from __future__ import annotations

import math
from typing import Literal

from loopverify.claims.claim import Bound, Claim, sentence
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import (
    CONTROLLED,
    PER_LOOP_FINAL_ONLY,
    PER_LOOP_PENALTY,
    PER_LOOP_RAW,
    PER_LOOP_RMSNORM,
    TERMINAL_PENALTY,
    TERMINAL_RAW,
    TERMINAL_RMSNORM,
    Condition,
)
from loopverify.claims.p1.published import by_size, entry, exit_gap

__all__ = ["TABLE_2"]


def _drift(hidden: Condition, controlled: Condition) -> Claim:
    return Claim(
        id=f"P1.T2.drift.{hidden.loss}.vs_{controlled.short}",
        sentence=sentence(
            f"{hidden.words} ends in states at least {limits.T2_LEAST_DRIFT:g} times as large as {controlled.words}"
        ),
        source="P1, Table 2",
        metric="norm@4",
        form=hidden.exceeds(controlled, by="ratio", least=limits.T2_LEAST_DRIFT),
        published=by_size(lambda size: entry("T2", size, hidden, "norm") / entry("T2", size, controlled, "norm")),
    )


def _size(condition: Condition, side: Literal["at least", "at most"]) -> Claim:
    group, limit, effect = (
        ("thousands", limits.T2_LEAST_THOUSANDS, "drives the norm of the final state into the thousands, {:,g} or more")
        if side == "at least"
        else ("tens", limits.T2_MOST_TENS, "keeps the norm of the final state in the tens, {:g} or less")
    )
    return Claim(
        id=f"P1.T2.{group}.{condition.slug}",
        sentence=sentence(f"{condition.words} {effect.format(limit)}"),
        source="P1, Table 2",
        metric="norm@4",
        form=Bound(condition=condition.name, side=side, value=limit),
        published=by_size(lambda size: entry("T2", size, condition, "norm")),
    )


def _cost(controlled: Condition) -> Claim:
    hidden = PER_LOOP_RMSNORM
    return Claim(
        id=f"P1.T2.perplexity.vs_{controlled.short}",
        sentence=sentence(
            f"{hidden.words} is at least {limits.T2_LEAST_COST:g} nats per token worse at its last exit "
            f"than {controlled.words}"
        ),
        source="P1, Table 2",
        metric="ce@4",
        form=hidden.exceeds(controlled, by="difference", least=limits.T2_LEAST_COST),
        published=by_size(
            lambda size: math.log(entry("T2", size, hidden, "ppl") / entry("T2", size, controlled, "ppl"))
        ),
    )


def _exits_fail(condition: Condition) -> Claim:
    return Claim(
        id=f"P1.T2.exits.fail.{condition.slug}",
        sentence=sentence(
            f"{condition.words} leaves early exits broken: the first is at least {limits.T2_LEAST_FAILURE:g} "
            "nats per token worse than the last"
        ),
        source="P1, section 4, Tables 5 and 11",
        metric="ce@1-ce@4",
        form=condition.at_least(limits.T2_LEAST_FAILURE),
        published=by_size(lambda size: exit_gap(condition, size)),
    )


def _exits_work(condition: Condition) -> Claim:
    return Claim(
        id=f"P1.T2.exits.work.{condition.slug}",
        sentence=sentence(
            f"{condition.words} leaves early exits usable: the first is at most {limits.T2_MOST_GAP:g} "
            "nats per token worse than the last"
        ),
        source="P1, section 4, Tables 5 and 11",
        metric="ce@1-ce@4",
        form=condition.at_most(limits.T2_MOST_GAP),
        published=by_size(lambda size: exit_gap(condition, size)),
    )


def _first_exit(terminal: Condition, per_loop: Condition) -> Claim:
    return Claim(
        id=f"P1.T2.exits.first.{per_loop.short}",
        sentence=sentence(
            f"{terminal.words} is at least {limits.T2_LEAST_EXIT_COST:g} nats per token worse at its first exit "
            f"than {per_loop.words}"
        ),
        source="P1, section 4, Table 11",
        metric="ce@1",
        form=terminal.exceeds(per_loop, by="difference", least=limits.T2_LEAST_EXIT_COST),
        published=by_size(
            lambda size: math.log(entry("T11", size, terminal, "ppl_K1") / entry("T11", size, per_loop, "ppl_K1"))
        ),
    )


TABLE_2: tuple[Claim, ...] = (
    *(_drift(PER_LOOP_RMSNORM, controlled) for controlled in CONTROLLED),
    _drift(TERMINAL_RMSNORM, TERMINAL_RAW),
    _drift(TERMINAL_RMSNORM, TERMINAL_PENALTY),
    _size(PER_LOOP_RMSNORM, "at least"),
    _size(TERMINAL_RMSNORM, "at least"),
    _size(PER_LOOP_RAW, "at most"),
    _size(PER_LOOP_FINAL_ONLY, "at most"),
    _size(PER_LOOP_PENALTY, "at most"),
    _size(TERMINAL_RAW, "at most"),
    _size(TERMINAL_PENALTY, "at most"),
    *(_cost(controlled) for controlled in CONTROLLED),
    _exits_fail(TERMINAL_RMSNORM),
    _exits_fail(TERMINAL_RAW),
    _exits_work(PER_LOOP_RMSNORM),
    *(_exits_work(controlled) for controlled in CONTROLLED),
    _first_exit(TERMINAL_RMSNORM, PER_LOOP_RMSNORM),
    _first_exit(TERMINAL_RAW, PER_LOOP_RAW),
)
