"""From a claim and some runs to evidence. Nothing here knows any particular claim."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from loopverify.claims import expression
from loopverify.claims.claim import Bound, Claim, Comparison
from loopverify.claims.evidence import Evidence, Measured, Verdict
from loopverify.claims.run import Run, one_study
from loopverify.stats import can_reach, cliffs_delta, rank_test, seeds_needed

__all__ = ["evaluate"]


@dataclass(frozen=True)
class _Side:
    """The runs of one condition, seen through one metric."""

    condition: str
    metric: str
    runs: tuple[Run, ...]

    @property
    def missing(self) -> list[str]:
        if not self.runs:
            return [f"runs of {self.condition}"]
        needed = expression.names(self.metric)
        return [f"{name} of {run.label}" for run in self.runs for name in needed if name not in run.metrics]

    @property
    def values(self) -> list[float]:
        return [expression.value(self.metric, run.metrics) for run in self.runs]

    @property
    def finite(self) -> list[float]:
        return [value for value in self.values if math.isfinite(value)]

    @property
    def diverged(self) -> list[str]:
        return [run.label for run, value in zip(self.runs, self.values, strict=True) if not math.isfinite(value)]

    def values_or(self, worst: float) -> list[float]:
        """The values, those of diverged runs replaced by the one that serves the claim least."""
        return [value if math.isfinite(value) else worst for value in self.values]


@dataclass(frozen=True, kw_only=True)
class _Ruling:
    """What the seeds decide, before it is put on record with the claim."""

    verdict: Verdict
    basis: str
    measured: Measured | None = None
    p_for: float | None = None
    p_against: float | None = None
    cliffs_delta: float | None = None


def evaluate(claim: Claim, runs: Iterable[Run]) -> Evidence:
    """What `runs` of one preset say about `claim`.

    A comparison is decided by exact rank tests at the claim's alpha where the seeds can reach it, otherwise by every
    pair of seeds; a bound by every seed. A run whose metric is not finite meets no effect and lies in no bound.

    Raises:
        InputError: runs of several presets, or two of one condition and seed.
    """
    study = one_study(runs)
    sides = [
        _Side(condition, claim.metric, tuple(run for run in study if run.condition == condition))
        for condition in claim.conditions
    ]
    if missing := [lack for side in sides for lack in side.missing]:
        needs = f"; it takes {claim.needs}" if claim.needs else ""
        return _record(claim, sides, _Ruling(verdict="not run", basis=f"missing: {', '.join(missing)}{needs}"), ())
    if isinstance(claim.form, Bound):
        ruling = _bound(claim.form, sides[0])
    else:
        ruling = _comparison(claim.form, claim.alpha, sides[0], sides[1])
    return _record(claim, sides, ruling, tuple(label for side in sides for label in side.diverged))


def _bound(form: Bound, side: _Side) -> _Ruling:
    inside, seeds = sum(form.within(value) for value in side.finite), len(side.values)
    return _Ruling(
        verdict=_unanimous(inside, seeds),
        basis=f"seeds within the bound: {inside} of {seeds}",
        measured=Measured.of(side.finite),
    )


def _comparison(form: Comparison, alpha: float, left: _Side, right: _Side) -> _Ruling:
    x, y = left.values_or(-math.inf), right.values_or(math.inf)
    decide = _by_test if can_reach(alpha, len(x), len(y)) else _by_pairs
    return replace(
        decide(x, [form.bar(value) for value in y], alpha),
        measured=Measured.of([form.effect(a, b) for a in left.finite for b in right.finite]),
        cliffs_delta=cliffs_delta(x, y),
    )


def _by_test(x: list[float], bars: list[float], alpha: float) -> _Ruling:
    p_for, p_against = rank_test(x, bars), rank_test(bars, x)
    return _Ruling(
        verdict="held" if p_for <= alpha else "contradicted" if p_against <= alpha else "inconclusive",
        basis=f"exact rank test against the least effect, n = {len(x)} and {len(bars)}: "
        f"p = {p_for:.3g} for, p = {p_against:.3g} against, alpha = {alpha:g}",
        p_for=p_for,
        p_against=p_against,
    )


def _by_pairs(x: list[float], bars: list[float], alpha: float) -> _Ruling:
    meeting, pairs = sum(a >= bar for a in x for bar in bars), len(x) * len(bars)
    return _Ruling(
        verdict=_unanimous(meeting, pairs),
        basis=f"effect only, n = {len(x)} and {len(bars)}: no test can reach alpha = {alpha:g}; "
        f"use --seeds {seeds_needed(alpha)}. "
        f"Pairs of seeds that meet the least effect: {meeting} of {pairs}",
    )


def _unanimous(favorable: int, total: int) -> Verdict:
    return "held" if favorable == total else "contradicted" if favorable == 0 else "inconclusive"


def _record(claim: Claim, sides: list[_Side], ruling: _Ruling, diverged: tuple[str, ...]) -> Evidence:
    excluded = f"; diverged, so counted as not meeting the claim: {', '.join(diverged)}" if diverged else ""
    return Evidence(
        claim=claim.id,
        sentence=claim.sentence,
        source=claim.source,
        metric=claim.metric,
        unit=claim.unit,
        published=claim.published,
        relation=claim.form.relation,
        limit=claim.form.limit,
        measured=ruling.measured,
        seeds={side.condition: tuple(run.seed for run in side.runs) for side in sides},
        alpha=claim.alpha,
        p_for=ruling.p_for,
        p_against=ruling.p_against,
        cliffs_delta=ruling.cliffs_delta,
        verdict=ruling.verdict,
        basis=ruling.basis + excluded,
        diverged=diverged,
    )
