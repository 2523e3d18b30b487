"""The claims of the first paper: Sharma & Vu 2026, Dense Supervision Is Not Enough (arXiv 2606.24898)."""

from __future__ import annotations

from loopverify.claims.claim import Claim
from loopverify.claims.p1.appendix16 import APPENDIX_16
from loopverify.claims.p1.depth import FIGURE_7, TABLE_5, TABLE_11, TABLE_14
from loopverify.claims.p1.published import tables
from loopverify.claims.p1.table2 import TABLE_2
from loopverify.claims.p1.table3 import TABLE_3
from loopverify.claims.p1.table4 import TABLE_4
from loopverify.claims.p1.table6 import FIGURE_5, TABLE_6
from loopverify.claims.p1.table7 import TABLE_7
from loopverify.claims.p1.table8 import TABLE_8
from loopverify.claims.p1.table10 import TABLE_10
from loopverify.claims.p1.table12 import TABLE_12
from loopverify.claims.p1.table13 import TABLE_13

__all__ = ["CLAIMS", "SOURCE"]

SOURCE: str = tables()["source"]
"""Authors, title and number of the paper."""

CLAIMS: tuple[Claim, ...] = (
    *(*TABLE_2, *TABLE_3, *TABLE_4, *TABLE_5, *TABLE_6, *TABLE_7, *TABLE_8, *TABLE_10, *TABLE_11, *TABLE_12),
    *(*TABLE_13, *TABLE_14, *APPENDIX_16, *FIGURE_5, *FIGURE_7),
)
