"""Record: the evidence, the measured table, the figures' data and the facts of a study, frozen, before any view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from loopverify.claims import VERDICTS, Evidence, Verdict
from loopverify.report.chart import Chart
from loopverify.report.measured_rows import Row
from loopverify.stats import holm, seeds_needed

__all__ = ["Record"]


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a study came to; views show these fields and nothing else."""

    title: str
    preset: str
    """'' when there are no runs."""
    loops: int
    """K, the last loop that the runs report."""
    evidence: tuple[Evidence, ...]
    rows: tuple[Row, ...]
    charts: tuple[Chart, ...]
    facts: Mapping[str, str]

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many claims ended how, all four verdicts named."""
        counted = Counter(evidence.verdict for evidence in self.evidence)
        return {verdict: counted[verdict] for verdict in VERDICTS}

    @property
    def runs(self) -> int:
        """How many runs the report rests on."""
        return sum(len(row.seeds) for row in self.rows)

    @property
    def strength(self) -> str:
        """How far the comparisons carry: those without a test, and the tests corrected for being many (Holm)."""
        compared = [e for e in self.evidence if len(e.seeds) == 2 and e.verdict != "not run"]
        untested = [e for e in compared if e.p_for is None]
        tested = [(e.p_for, e.alpha) for e in compared if e.p_for is not None]
        return " ".join([*_untested(untested), *_family(tested)])


def _untested(evidence: list[Evidence]) -> list[str]:
    if not evidence:
        return []
    needed = seeds_needed(min(e.alpha for e in evidence))
    return [f"Comparisons that rest on the effect alone: {len(evidence)}; a test needs at least {needed} seeds a side."]


def _family(tested: list[tuple[float, float]]) -> list[str]:
    """What the tests, as (p, alpha), come to jointly."""
    if len(tested) < 2:
        return []
    alpha = min(alpha for _, alpha in tested)
    alone = sum(p <= level for p, level in tested)
    jointly = sum(p <= alpha for p in holm([p for p, _ in tested]))
    told = (
        f"{alone} of {len(tested)} rank tests hold at their own alpha; {jointly} of them still do after "
        f"Holm's correction over all {len(tested)} at alpha = {alpha:g}"
    )
    needed = f", for which the design needs at least {seeds_needed(alpha / len(tested))} seeds a side"
    return [f"{told}{needed if jointly < alone else ''}."]
