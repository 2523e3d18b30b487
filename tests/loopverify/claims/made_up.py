"""Made-up runs that give a claim any effect one likes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from loopverify.claims import Bound, Claim, Run

RIGHT = 10.0
"""What the right side of every made-up comparison measures."""


def run(condition: str, seed: int, metrics: dict[str, float], preset: str = "made_up") -> Run:
    return Run(preset=preset, condition=condition, seed=seed, metrics=metrics, key=f"{condition}#{seed}")


def metrics(expression: str, value: float) -> dict[str, float]:
    """Metrics by which `expression` comes to `value`."""
    first, *rest = re.split("[-/]", expression)
    if not rest:
        return {first: value}
    return {first: value * 2.0 if "/" in expression else value + 2.0, rest[0]: 2.0}


def met(claim: Claim) -> float:
    """A value of the left side (or of the bound's condition) that meets the claim clearly."""
    form = claim.form
    if isinstance(form, Bound):
        return form.limit + (_step(claim) if form.side == "at least" else -_step(claim) / 2)
    return form.limit * 2 * RIGHT if form.by == "ratio" else RIGHT + form.limit + _step(claim)


def missed(claim: Claim) -> float:
    """A value that misses it clearly."""
    form = claim.form
    if isinstance(form, Bound):
        return form.limit + (-_step(claim) / 2 if form.side == "at least" else _step(claim))
    return form.limit / 2 * RIGHT if form.by == "ratio" else RIGHT + form.limit - _step(claim) / 2


def _step(claim: Claim) -> float:
    """The size of the claim's limit, or 1 where that is nothing."""
    return abs(claim.form.limit) or 1.0


def runs(claim: Claim, values: Sequence[float], right: Sequence[float] | None = None) -> list[Run]:
    """One run a value of the left side, and one a value of the right side where there is one."""
    sides = [values, [RIGHT] * len(values) if right is None else right]
    return [
        run(condition, seed, metrics(claim.metric, value))
        for condition, side in zip(claim.conditions, sides, strict=False)
        for seed, value in enumerate(side)
    ]
