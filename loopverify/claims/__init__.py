"""Empirical claims as data, grouped by study, and their evaluation on stored runs.

evidence = evaluate(CLAIMS["P1.T2.drift.per_loop.vs_raw"], runs)
evidence.verdict          # "held" | "contradicted" | "inconclusive" | "not run"

`p1` holds the claims of the first paper, `hops` those of our own study on following pointers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from loopverify.claims import hops, p1
from loopverify.claims.claim import Bound, Claim, Comparison
from loopverify.claims.evaluate import evaluate
from loopverify.claims.evidence import VERDICTS, Evidence, Measured, Verdict
from loopverify.claims.hops import FIRST_EXIT, HOPS
from loopverify.claims.run import Run, one_study
from loopverify.errors import unknown

__all__ = [
    "CLAIMS",
    "FIRST_EXIT",
    "HOPS",
    "VERDICTS",
    "Bound",
    "Claim",
    "Comparison",
    "Evidence",
    "Measured",
    "Run",
    "Verdict",
    "claims_for",
    "conditions_of",
    "evaluate",
    "one_study",
]

CLAIMS: Mapping[str, Claim] = MappingProxyType({claim.id: claim for claim in (*p1.CLAIMS, *hops.CLAIMS)})
"""Every claim by its id."""


def claims_for(tables: Sequence[str] | None = None) -> tuple[Claim, ...]:
    """The claims of some tables, such as ["P1.T2"]; all claims when omitted.

    Raises:
        InputError: a table without claims.
    """
    known = {claim.table for claim in CLAIMS.values()}
    for table in tables or ():
        if table not in known:
            raise unknown("table", table, sorted(known))
    return tuple(claim for claim in CLAIMS.values() if tables is None or claim.table in tables)


def conditions_of(claims: Iterable[Claim]) -> tuple[str, ...]:
    """The conditions that a set of claims needs runs of, each once, in the order of the claims."""
    return tuple(dict.fromkeys(condition for claim in claims for condition in claim.conditions))
