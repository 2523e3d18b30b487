"""The claims of Table 2 of Sharma & Vu 2026 and of its discussion (section 4)."""

from __future__ import annotations

from loopverify.claims.claim import Claim
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
)
from loopverify.claims.p1.published import column, exit_gap, log_ratio, ratio
from loopverify.claims.template import claims

__all__ = ["TABLE_2"]

_TABLE = "P1, Table 2"
_EXITS = "P1, section 4, Tables 5 and 11"

TABLE_2: tuple[Claim, ...] = (
    *claims(
        "P1.T2.drift.{0.loss}.vs_{1.short}",
        "{0} ends in states at least {limit:g} times as large as {1}",
        *((PER_LOOP_RMSNORM, controlled) for controlled in CONTROLLED),
        (TERMINAL_RMSNORM, TERMINAL_RAW),
        (TERMINAL_RMSNORM, TERMINAL_PENALTY),
        form=("ratio", limits.T2_LEAST_DRIFT),
        metric="norm@4",
        source=_TABLE,
        published=ratio("T2", "norm"),
    ),
    *claims(
        "P1.T2.thousands.{0.slug}",
        "{0} drives the norm of the final state into the thousands, {limit:,g} or more",
        PER_LOOP_RMSNORM,
        TERMINAL_RMSNORM,
        form=("at least", limits.T2_LEAST_THOUSANDS),
        metric="norm@4",
        source=_TABLE,
        published=column("T2", "norm"),
    ),
    *claims(
        "P1.T2.tens.{0.slug}",
        "{0} keeps the norm of the final state in the tens, {limit:g} or less",
        *(PER_LOOP_RAW, PER_LOOP_FINAL_ONLY, PER_LOOP_PENALTY, TERMINAL_RAW, TERMINAL_PENALTY),
        form=("at most", limits.T2_MOST_TENS),
        metric="norm@4",
        source=_TABLE,
        published=column("T2", "norm"),
    ),
    *claims(
        "P1.T2.perplexity.vs_{1.short}",
        "{0} is at least {limit:g} nats per token worse at its last exit than {1}",
        *((PER_LOOP_RMSNORM, controlled) for controlled in CONTROLLED),
        form=("difference", limits.T2_LEAST_COST),
        metric="ce@4",
        source=_TABLE,
        published=log_ratio("T2", "ppl"),
    ),
    *claims(
        "P1.T2.exits.fail.{0.slug}",
        "{0} leaves early exits broken: the first is at least {limit:g} nats per token worse than the last",
        *(TERMINAL_RMSNORM, TERMINAL_RAW),
        form=("at least", limits.T2_LEAST_FAILURE),
        metric="ce@1-ce@4",
        source=_EXITS,
        published=exit_gap,
    ),
    *claims(
        "P1.T2.exits.work.{0.slug}",
        "{0} leaves early exits usable: the first is at most {limit:g} nats per token worse than the last",
        *(PER_LOOP_RMSNORM, *CONTROLLED),
        form=("at most", limits.T2_MOST_GAP),
        metric="ce@1-ce@4",
        source=_EXITS,
        published=exit_gap,
    ),
    *claims(
        "P1.T2.exits.first.{1.short}",
        "{0} is at least {limit:g} nats per token worse at its first exit than {1}",
        (TERMINAL_RMSNORM, PER_LOOP_RMSNORM),
        (TERMINAL_RAW, PER_LOOP_RAW),
        form=("difference", limits.T2_LEAST_EXIT_COST),
        metric="ce@1",
        source="P1, section 4, Table 11",
        published=log_ratio("T11", "ppl_K1"),
    ),
)
