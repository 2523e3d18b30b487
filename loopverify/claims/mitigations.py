"""Appendix 16 of Sharma & Vu 2026: what other interventions make of the size of the state."""

from __future__ import annotations

from loopverify.claims import paper
from loopverify.claims.claim import Bound, Claim, Comparison
from loopverify.claims.table2 import LEAST_DRIFT, TENS, THOUSANDS
from loopverify.claims.words import WORDS, sentence

__all__ = ["APPENDIX_16"]

LEAST_DAMPING = 1.2
"""Ratio of final norms that spectral damping takes away; the paper has 2.3 and 2.0."""
LEAST_LEFT = 10.0
"""Ratio of final norms, damped over raw; the paper has 162 and 124."""
MOST_BETWEEN = 10.0
"""rms(H_4) after a norm between loops, which gives each state about the size of its gain; the paper says 'caps'."""

_A16 = "P1.A16_mitigations_norm"
_EXIT_WEIGHTED, _DAMPED = "exit_weighted/rmsnorm", "terminal/rmsnorm/damped"
_LATENT, _BETWEEN = "per_loop+latent/rmsnorm", "per_loop/rmsnorm/inter_loop_norm"


def _norm(row: str, size: str) -> float:
    return float(paper.tables()[_A16][row][size][0])


APPENDIX_16: tuple[Claim, ...] = (
    Claim(
        id="P1.A16.exit_weighted.vs_raw",
        sentence=sentence(
            f"{WORDS[_EXIT_WEIGHTED]} ends in states at least {LEAST_DRIFT:g} times as large as {WORDS['per_loop/raw']}"
        ),
        source="P1, appendix 16",
        metric="norm@4",
        form=Comparison(left=_EXIT_WEIGHTED, right="per_loop/raw", by="ratio", least=LEAST_DRIFT),
        published=paper.by_size(lambda size: _norm("exit_weighted", size) / paper.final_norm("per_loop/raw", size)),
    ),
    Claim(
        id="P1.A16.exit_weighted.thousands",
        sentence=sentence(
            f"{WORDS[_EXIT_WEIGHTED]} drives the norm of the final state into the thousands, {THOUSANDS:,g} or more"
        ),
        source="P1, appendix 16",
        metric="norm@4",
        form=Bound(condition=_EXIT_WEIGHTED, side="at least", value=THOUSANDS),
        published=paper.by_size(lambda size: _norm("exit_weighted", size)),
    ),
    Claim(
        id="P1.A16.damping.smaller",
        sentence=sentence(
            f"{WORDS['terminal/rmsnorm']} ends in states at least {LEAST_DAMPING:g} times as large as with spectral "
            "damping"
        ),
        source="P1, appendix 16",
        metric="norm@4",
        form=Comparison(left="terminal/rmsnorm", right=_DAMPED, by="ratio", least=LEAST_DAMPING),
        published=paper.by_size(
            lambda size: paper.final_norm("terminal/rmsnorm", size) / _norm("spectral_damping", size)
        ),
    ),
    Claim(
        id="P1.A16.damping.not_enough",
        sentence=sentence(
            f"{WORDS[_DAMPED]} still ends in states at least {LEAST_LEFT:g} times as large as {WORDS['terminal/raw']}"
        ),
        source="P1, appendix 16",
        metric="norm@4",
        form=Comparison(left=_DAMPED, right="terminal/raw", by="ratio", least=LEAST_LEFT),
        published=paper.by_size(lambda size: _norm("spectral_damping", size) / paper.final_norm("terminal/raw", size)),
    ),
    Claim(
        id="P1.A16.latent.tens",
        sentence=sentence(f"{WORDS[_LATENT]} keeps the norm of the final state in the tens, {TENS:g} or less"),
        source="P1, appendix 16",
        metric="norm@4",
        form=Bound(condition=_LATENT, side="at most", value=TENS),
    ),
    Claim(
        id="P1.A16.inter_loop_norm.capped",
        sentence=sentence(f"{WORDS[_BETWEEN]} caps its states: their rms is at most {MOST_BETWEEN:g}"),
        source="P1, appendix 16",
        metric="rms@4",
        form=Bound(condition=_BETWEEN, side="at most", value=MOST_BETWEEN),
    ),
)
