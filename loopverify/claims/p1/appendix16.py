"""Appendix 16 of Sharma & Vu 2026: how other interventions change the size of the state."""

from __future__ import annotations

from functools import partial

from loopverify.claims.claim import Claim
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import (
    DAMPED,
    EXIT_WEIGHTED,
    INTER_LOOP_NORM,
    LATENT,
    PER_LOOP_RAW,
    TERMINAL_RAW,
    TERMINAL_RMSNORM,
)
from loopverify.claims.p1.published import column, entry
from loopverify.claims.template import claims

__all__ = ["APPENDIX_16"]

_claims = partial(claims, source="P1, appendix 16")

APPENDIX_16: tuple[Claim, ...] = (
    *_claims(
        "P1.A16.exit_weighted.vs_raw",
        "{0} ends in states at least {limit:g} times as large as {1}",
        (EXIT_WEIGHTED, PER_LOOP_RAW),
        form=("ratio", limits.T2_LEAST_DRIFT),
        metric="norm@4",
        published=lambda size, left, right: entry("A16", size, left, "norm") / entry("T2", size, right, "norm"),
    ),
    *_claims(
        "P1.A16.exit_weighted.thousands",
        "{0} drives the norm of the final state into the thousands, {limit:,g} or more",
        EXIT_WEIGHTED,
        form=("at least", limits.T2_LEAST_THOUSANDS),
        metric="norm@4",
        published=column("A16", "norm"),
    ),
    *_claims(
        "P1.A16.damping.smaller",
        "{0} ends in states at least {limit:g} times as large as with spectral damping",
        (TERMINAL_RMSNORM, DAMPED),
        form=("ratio", limits.A16_LEAST_DAMPING),
        metric="norm@4",
        published=lambda size, left, right: entry("T2", size, left, "norm") / entry("A16", size, right, "norm"),
    ),
    *_claims(
        "P1.A16.damping.not_enough",
        "{0} still ends in states at least {limit:g} times as large as {1}",
        (DAMPED, TERMINAL_RAW),
        form=("ratio", limits.A16_LEAST_LEFT),
        metric="norm@4",
        published=lambda size, left, right: entry("A16", size, left, "norm") / entry("T2", size, right, "norm"),
    ),
    *_claims(
        "P1.A16.latent.tens",
        "{0} keeps the norm of the final state in the tens, {limit:g} or less",
        LATENT,
        form=("at most", limits.T2_MOST_TENS),
        metric="norm@4",
    ),
    *_claims(
        "P1.A16.inter_loop_norm.capped",
        "{0} caps its states: their rms is at most {limit:g}",
        INTER_LOOP_NORM,
        form=("at most", limits.A16_MOST_BETWEEN),
        metric="rms@4",
    ),
)
