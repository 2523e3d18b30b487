"""Record: the evidence, measured table, figure data and facts of a study, frozen and independent of any view."""

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
    """The results of a study; views show these fields and nothing else."""

    title: str
    preset: str
    """'' when there are no runs."""
    loops: int
    """K, the largest loop in the metrics of the runs."""
    evidence: tuple[Evidence, ...]
    rows: tuple[Row, ...]
    charts: tuple[Chart, ...]
    facts: Mapping[str, str]

    @property
    def counts(self) -> dict[Verdict, int]:
        """The number of claims with each of the four verdicts."""
        counted = Counter(evidence.verdict for evidence in self.evidence)
        return {verdict: counted[verdict] for verdict in VERDICTS}

    @property
    def runs(self) -> int:
        """The number of runs."""
        return sum(len(row.seeds) for row in self.rows)

    @property
    def strength(self) -> str:
        """The strength of the comparisons: how many have no test, and how many tests hold after Holm's correction."""
        compared = [e for e in self.evidence if len(e.seeds) == 2 and e.verdict != "not run"]
        untested = [e for e in compared if e.p_for is None]
        tested = [(e.p_for, e.alpha) for e in compared if e.p_for is not None]
        return " ".join([*_untested(untested), *_family(tested)])


def _untested(evidence: list[Evidence]) -> list[str]:
    if not evidence:
        return []
    needed = seeds_needed(min(e.alpha for e in evidence))
    return [f"Comparisons by effect size alone: {len(evidence)}; a test requires at least {needed} seeds per side."]


def _family(tested: list[tuple[float, float]]) -> list[str]:
    """How many tests, as (p, alpha), hold one by one and jointly."""
    if len(tested) < 2:
        return []
    alpha = min(alpha for _, alpha in tested)
    alone = sum(p <= level for p, level in tested)
    jointly = sum(p <= alpha for p in holm([p for p, _ in tested]))
    summary = (
        f"{alone} of {len(tested)} rank tests hold at their own alpha; {jointly} of them still do after "
        f"Holm's correction over all {len(tested)} at alpha = {alpha:g}"
    )
    needed = f", which requires at least {seeds_needed(alpha / len(tested))} seeds per side"
    return [f"{summary}{needed if jointly < alone else ''}."]
