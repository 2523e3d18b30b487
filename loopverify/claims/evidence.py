"""Evidence: what the available runs show about one claim. Terminal, JSON and HTML show this record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from statistics import median
from typing import Any, Literal, Self

from loopverify.claims.claim import Claim
from loopverify.claims.expression import label
from loopverify.claims.quantity import number, quantity

__all__ = ["VERDICTS", "Evidence", "Measured", "Verdict"]

Verdict = Literal["held", "contradicted", "inconclusive", "not run"]
VERDICTS: tuple[Verdict, ...] = ("held", "contradicted", "inconclusive", "not run")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An effect over seeds, or over all pairs of seeds of two conditions."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, effects: list[float]) -> Self | None:
        """The summary of the finite effects; None if there are none."""
        effects = [effect for effect in effects if isfinite(effect)]
        return cls(median=median(effects), low=min(effects), high=max(effects)) if effects else None

    @property
    def range_text(self) -> str:
        """Smallest to largest, human-readable: '301…355'; '' if they are equal."""
        low, high = number(self.low), number(self.high)
        return f"{low}…{high}" if low != high else ""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One claim, what was measured, and the verdict."""

    claim: str
    """The claim's id."""
    sentence: str
    source: str
    metric: str
    unit: str
    """Unit of the effect: '×', 'nats' (per token), 'L2', 'rms' or ''."""
    published: Mapping[str, float]
    """The paper's own effect by model size."""
    relation: Literal["≥", "≤"]
    limit: float
    """The least effect, or the bound."""
    measured: Measured | None = None
    """None if nothing finite was measured."""
    seeds: Mapping[str, tuple[int, ...]]
    """The seeds of every condition compared."""
    alpha: float
    p_for: float | None = None
    """Exact one-sided p that the effect exceeds the limit; None if no test was made."""
    p_against: float | None = None
    """Exact one-sided p that the effect falls short of the limit."""
    cliffs_delta: float | None = None
    """Cliff's delta of the two conditions, without a margin."""
    verdict: Verdict
    basis: str
    """The reason for the verdict, and the data that it is based on."""
    diverged: tuple[str, ...] = ()
    """Runs whose metric is not a finite number."""

    @classmethod
    def of(cls, claim: Claim, seeds: Mapping[str, tuple[int, ...]], verdict: Verdict, basis: str) -> Self:
        """The evidence on a claim, before any measured numbers are added."""
        return cls(
            claim=claim.id,
            sentence=claim.sentence,
            source=claim.source,
            metric=claim.metric,
            unit=claim.unit,
            published=claim.published,
            relation=claim.form.relation,
            limit=claim.form.limit,
            seeds=seeds,
            alpha=claim.alpha,
            verdict=verdict,
            basis=basis,
        )

    @property
    def n(self) -> str:
        """Seeds per side: '3 vs 3', or '3' for one condition."""
        return " vs ".join(str(len(seeds)) for seeds in self.seeds.values())

    @property
    def margin(self) -> float | None:
        """Distance of the median from the limit, in `unit`; negative if the limit is not met."""
        if self.measured is None:
            return None
        over = self.measured.median - self.limit
        return over if self.relation == "≥" else -over

    @property
    def required_text(self) -> str:
        """The limit, human-readable: '≥ ×30'."""
        return f"{self.relation} {_limit(self.limit, self.unit)}"

    @property
    def measured_text(self) -> str:
        """The effect, human-readable: '×328 (301…355)'."""
        if self.measured is None:
            return "–"
        middle, over_seeds = quantity(self.measured.median, self.unit), self.measured.range_text
        return f"{middle} ({over_seeds})" if over_seeds else middle

    @property
    def published_text(self) -> str:
        """The paper's effects, human-readable: '×891 (44M), ×728 (129M)', '0.116 (44M), 0.084 (129M) nats'."""
        if not self.published:
            return "–"
        sign, unit = ("×", "") if self.unit == "×" else ("", self.unit)
        effects = ", ".join(f"{sign}{number(value)} ({size.upper()})" for size, value in self.published.items())
        return f"{effects} {unit}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values, with `n` and `margin`."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        return record | {
            "published": dict(self.published),
            "measured": None if self.measured is None else asdict(self.measured),
            "seeds": {condition: list(seeds) for condition, seeds in self.seeds.items()},
            "diverged": list(self.diverged),
            "n": self.n,
            "margin": self.margin,
        }

    def __str__(self) -> str:
        return (
            f"{self.verdict}: {self.sentence} [{self.claim}; {self.source}]\n"
            f"  measured {label(self.metric)}: {self.measured_text}, required {self.required_text}; "
            f"paper: {self.published_text}; n = {self.n}\n"
            f"  {self.basis}"
        )


def _limit(limit: float, unit: str) -> str:
    """A limit, human-readable. It is a chosen number, and is not rounded like a measured one."""
    return f"×{limit:g}" if unit == "×" else f"{limit:,g} {unit}".rstrip()
