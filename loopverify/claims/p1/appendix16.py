"""Appendix 16 of Sharma & Vu 2026: how other interventions change the size of the state."""

from __future__ import annotations

from loopverify.claims.claim import Claim, sentence
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import (
    DAMPED,
    EXIT_WEIGHTED,
    INTER_LOOP_NORM,
    LATENT,
    PER_LOOP_RAW,
    TERMINAL_RAW,
    TERMINAL_RMSNORM,
    Condition,
)
from loopverify.claims.p1.published import by_size, entry

__all__ = ["APPENDIX_16"]


def _norm(condition: Condition, size: str) -> float:
    return entry("A16", size, condition, "norm")


def _of_table_2(condition: Condition, size: str) -> float:
    return entry("T2", size, condition, "norm")


APPENDIX_16: tuple[Claim, ...] = (
    Claim(
        id="P1.A16.exit_weighted.vs_raw",
        sentence=sentence(
            f"{EXIT_WEIGHTED.words} ends in states at least {limits.T2_LEAST_DRIFT:g} times as large as "
            f"{PER_LOOP_RAW.words}"
        ),
        source="P1, appendix 16",
        metric="norm@4",
        form=EXIT_WEIGHTED.exceeds(PER_LOOP_RAW, by="ratio", least=limits.T2_LEAST_DRIFT),
        published=by_size(lambda size: _norm(EXIT_WEIGHTED, size) / _of_table_2(PER_LOOP_RAW, size)),
    ),
    Claim(
        id="P1.A16.exit_weighted.thousands",
        sentence=sentence(
            f"{EXIT_WEIGHTED.words} drives the norm of the final state into the thousands, "
            f"{limits.T2_LEAST_THOUSANDS:,g} or more"
        ),
        source="P1, appendix 16",
        metric="norm@4",
        form=EXIT_WEIGHTED.at_least(limits.T2_LEAST_THOUSANDS),
        published=by_size(lambda size: _norm(EXIT_WEIGHTED, size)),
    ),
    Claim(
        id="P1.A16.damping.smaller",
        sentence=sentence(
            f"{TERMINAL_RMSNORM.words} ends in states at least {limits.A16_LEAST_DAMPING:g} times as large as with "
            "spectral damping"
        ),
        source="P1, appendix 16",
        metric="norm@4",
        form=TERMINAL_RMSNORM.exceeds(DAMPED, by="ratio", least=limits.A16_LEAST_DAMPING),
        published=by_size(lambda size: _of_table_2(TERMINAL_RMSNORM, size) / _norm(DAMPED, size)),
    ),
    Claim(
        id="P1.A16.damping.not_enough",
        sentence=sentence(
            f"{DAMPED.words} still ends in states at least {limits.A16_LEAST_LEFT:g} times as large as "
            f"{TERMINAL_RAW.words}"
        ),
        source="P1, appendix 16",
        metric="norm@4",
        form=DAMPED.exceeds(TERMINAL_RAW, by="ratio", least=limits.A16_LEAST_LEFT),
        published=by_size(lambda size: _norm(DAMPED, size) / _of_table_2(TERMINAL_RAW, size)),
    ),
    Claim(
        id="P1.A16.latent.tens",
        sentence=sentence(
            f"{LATENT.words} keeps the norm of the final state in the tens, {limits.T2_MOST_TENS:g} or less"
        ),
        source="P1, appendix 16",
        metric="norm@4",
        form=LATENT.at_most(limits.T2_MOST_TENS),
    ),
    Claim(
        id="P1.A16.inter_loop_norm.capped",
        sentence=sentence(f"{INTER_LOOP_NORM.words} caps its states: their rms is at most {limits.A16_MOST_BETWEEN:g}"),
        source="P1, appendix 16",
        metric="rms@4",
        form=INTER_LOOP_NORM.at_most(limits.A16_MOST_BETWEEN),
    ),
)
