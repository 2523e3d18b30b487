"""Claim: one empirical sentence of a study and the test that decides it, fixed before any run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from loopverify.claims import expression
from loopverify.errors import InputError, unknown

__all__ = ["Bound", "Claim", "Comparison"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One condition exceeds another by a least effect."""

    left: str
    right: str
    by: Literal["ratio", "difference"]
    limit: float
    """The least effect: the claim is met if left >= limit * right, or left >= right + limit."""

    def __post_init__(self) -> None:
        if self.by not in ("ratio", "difference"):
            raise unknown("kind of effect", self.by, ("ratio", "difference"))

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions it needs runs of."""
        return (self.left, self.right)

    @property
    def relation(self) -> Literal["≥"]:
        """The required relation of the effect to `limit`."""
        return "≥"

    @property
    def test(self) -> str:
        """The deciding test, human-readable."""
        return "exact one-sided rank test over seeds, its null shifted to the least effect"

    def effect(self, left: float, right: float) -> float:
        """By how much `left` exceeds `right`, as a factor or in the metric's unit."""
        if self.by == "difference":
            return left - right
        return left / right if right else math.inf

    def bar(self, right: float) -> float:
        """The value that `left` must reach, given this value of the right side."""
        return self.limit * right if self.by == "ratio" else right + self.limit

    def unit(self, metric: str) -> str:
        """The unit of the effect: '×' for a ratio, otherwise that of the metric."""
        return "×" if self.by == "ratio" else expression.unit(metric)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Every seed of one condition lies on one side of a limit."""

    condition: str
    side: Literal["at least", "at most"]
    limit: float

    def __post_init__(self) -> None:
        if self.side not in ("at least", "at most"):
            raise unknown("side of a bound", self.side, ("at least", "at most"))

    @property
    def conditions(self) -> tuple[str, ...]:
        """The condition it needs runs of."""
        return (self.condition,)

    @property
    def relation(self) -> Literal["≥", "≤"]:
        """The required relation of the metric to `limit`."""
        return "≥" if self.side == "at least" else "≤"

    @property
    def test(self) -> str:
        """The deciding test, human-readable."""
        return "every seed within the bound"

    def within(self, value: float) -> bool:
        """Whether the value of one seed is within the bound."""
        return value >= self.limit if self.side == "at least" else value <= self.limit

    def unit(self, metric: str) -> str:
        """The unit of the metric."""
        return expression.unit(metric)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim; never edited to fit a result: another threshold is another claim."""

    id: str
    """Study, table, then what it is about: 'P1.T2.drift.per_loop.vs_raw', 'hops.depth.invariant.rmsnorm'."""
    sentence: str
    source: str
    metric: str
    """One metric of `claims.metrics`, or a difference or ratio of two, e.g. 'norm@4', 'ce@1-ce@4', 'norm@4/norm@1'."""
    form: Comparison | Bound
    published: Mapping[str, float] = field(default_factory=dict)
    """The paper's own effect by model size ('44m', '129m', '1.4b'), in `unit`; empty if it gives no number."""
    needs: str = ""
    """What it requires in addition to trained models, if anything."""
    alpha: float = 0.05

    def __post_init__(self) -> None:
        expression.unit(self.metric)  # raises for an unknown metric, and for two units
        if not 0 < self.alpha < 1:
            raise InputError(f"alpha of {self.id} is {self.alpha}; expected a probability between 0 and 1")
        object.__setattr__(self, "published", MappingProxyType(dict(self.published)))

    @property
    def study(self) -> str:
        """The study it belongs to: 'P1' (the first paper), 'hops' (our own, on following pointers)."""
        return self.id.split(".")[0]

    @property
    def table(self) -> str:
        """The study and its table: 'P1.T2'."""
        return ".".join(self.id.split(".")[:2])

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions it needs runs of."""
        return self.form.conditions

    @property
    def test(self) -> str:
        """The deciding test, human-readable."""
        return self.form.test

    @property
    def unit(self) -> str:
        """The unit of its effect, its limit and its published numbers."""
        return self.form.unit(self.metric)
