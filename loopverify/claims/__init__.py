"""The papers' empirical claims as data, and what stored runs say about them.

evidence = evaluate(CLAIMS["P1.T2.drift.per_loop.vs_raw"], runs)
evidence.verdict          # "held" | "contradicted" | "inconclusive" | "not run"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from loopverify.claims.claim import Bound, Claim, Comparison
from loopverify.claims.depth import FIGURE_7, TABLE_5, TABLE_11, TABLE_14
from loopverify.claims.depth_use import DEPTH_USE, FIRST_EXIT, HOPS
from loopverify.claims.evaluate import evaluate
from loopverify.claims.evidence import VERDICTS, Evidence, Measured, Verdict
from loopverify.claims.mitigations import APPENDIX_16
from loopverify.claims.run import Run, one_study
from loopverify.claims.table2 import TABLE_2
from loopverify.claims.table3 import TABLE_3
from loopverify.claims.table4 import TABLE_4
from loopverify.claims.table6 import FIGURE_5, TABLE_6
from loopverify.claims.table7 import TABLE_7
from loopverify.claims.table8 import TABLE_8
from loopverify.claims.table10 import TABLE_10
from loopverify.claims.table12 import TABLE_12
from loopverify.claims.table13 import TABLE_13
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

_TABLES = (
    *(TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_6, TABLE_7, TABLE_8, TABLE_10, TABLE_11, TABLE_12, TABLE_13, TABLE_14),
    *(APPENDIX_16, FIGURE_5, FIGURE_7, DEPTH_USE),
)
CLAIMS: Mapping[str, Claim] = MappingProxyType({claim.id: claim for table in _TABLES for claim in table})
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
