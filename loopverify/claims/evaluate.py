"""From a claim and runs to evidence, in the same way for every claim."""

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
    """One metric of the runs of one condition."""

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
        """The values; those of diverged runs are replaced by the worst one for the claim."""
        return [value if math.isfinite(value) else worst for value in self.values]


def evaluate(claim: Claim, runs: Iterable[Run]) -> Evidence:
    """What `runs` of one preset show about `claim`.

    A comparison is decided by exact rank tests at the claim's alpha if there are enough seeds for it, otherwise by all
    pairs of seeds; a bound by every seed. A run whose metric is not finite counts as not meeting the claim.

    Raises:
        InputError: runs of several presets, or two runs of one condition and seed.
    """
    study = one_study(runs)
    sides = [
        _Side(condition, claim.metric, tuple(run for run in study if run.condition == condition))
        for condition in claim.conditions
    ]
    seeds = {side.condition: tuple(run.seed for run in side.runs) for side in sides}
    evidence = Evidence.of(claim, seeds, verdict="not run", basis="")
    if missing := [lack for side in sides for lack in side.missing]:
        needs = f"; it takes {claim.needs}" if claim.needs else ""
        return replace(evidence, basis=f"missing: {', '.join(missing)}{needs}")
    if isinstance(claim.form, Bound):
        evidence = _bound(evidence, claim.form, *sides)
    else:
        evidence = _comparison(evidence, claim.form, *sides)
    diverged = tuple(label for side in sides for label in side.diverged)
    excluded = f"; diverged, so counted as not meeting the claim: {', '.join(diverged)}" if diverged else ""
    return replace(evidence, basis=evidence.basis + excluded, diverged=diverged)


def _bound(evidence: Evidence, form: Bound, side: _Side) -> Evidence:
    inside, seeds = sum(form.within(value) for value in side.finite), len(side.values)
    return replace(
        evidence,
        verdict=_unanimous(inside, seeds),
        basis=f"seeds within the bound: {inside} of {seeds}",
        measured=Measured.of(side.finite),
    )


def _comparison(evidence: Evidence, form: Comparison, left: _Side, right: _Side) -> Evidence:
    x, y = left.values_or(-math.inf), right.values_or(math.inf)
    decide = _by_test if can_reach(evidence.alpha, len(x), len(y)) else _by_pairs
    return replace(
        decide(evidence, x, [form.bar(value) for value in y]),
        measured=Measured.of([form.effect(a, b) for a in left.finite for b in right.finite]),
        cliffs_delta=cliffs_delta(x, y),
    )


def _by_test(evidence: Evidence, x: list[float], bars: list[float]) -> Evidence:
    p_for, p_against, alpha = rank_test(x, bars), rank_test(bars, x), evidence.alpha
    return replace(
        evidence,
        verdict="held" if p_for <= alpha else "contradicted" if p_against <= alpha else "inconclusive",
        basis=f"exact rank test against the least effect, n = {len(x)} and {len(bars)}: "
        f"p = {p_for:.3g} for, p = {p_against:.3g} against, alpha = {alpha:g}",
        p_for=p_for,
        p_against=p_against,
    )


def _by_pairs(evidence: Evidence, x: list[float], bars: list[float]) -> Evidence:
    meeting, pairs = sum(a >= bar for a in x for bar in bars), len(x) * len(bars)
    return replace(
        evidence,
        verdict=_unanimous(meeting, pairs),
        basis=f"effect only, n = {len(x)} and {len(bars)}: no test can reach alpha = {evidence.alpha:g}; "
        f"use --seeds {seeds_needed(evidence.alpha)}. "
        f"Pairs of seeds that meet the least effect: {meeting} of {pairs}",
    )


def _unanimous(favorable: int, total: int) -> Verdict:
    return "held" if favorable == total else "contradicted" if favorable == 0 else "inconclusive"
