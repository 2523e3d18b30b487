"""Frozen records of what a check found and how its run ended, and the exceptions that carry them."""

from __future__ import annotations

import unittest
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

from loopverify.errors import LoopverifyError
from loopverify.plain import plain_dict

__all__ = [
    "CheckResult",
    "ConformanceError",
    "Finding",
    "NotApplicableError",
    "Status",
    "UnsoundRunError",
    "at_least",
    "at_most",
    "first_failing",
    "none",
]

Status = Literal["passed", "failed", "xfailed", "xpassed", "skipped", "error"]
Relation = Literal["<=", ">="]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check measured, whether the property held, and the message."""

    held: bool
    message: str
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    relation: Relation = "<="


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """How one check of one model ended."""

    id: str
    """The name of the check, as used in `expected_failures` and pytest's -k."""
    model: str
    status: Status
    message: str
    """What was found. A failure names the fault, its likely cause and the remedy; a skip its reason."""
    value: float | None = None
    """What was measured, in `unit`; None when the check measures nothing."""
    limit: float | None = None
    """The bound on `value`, in the same unit."""
    unit: str = ""
    relation: Relation = "<="
    """The required relation of `value` to `limit`."""
    dtype: str = ""
    """dtype of the states."""
    device: str = ""
    seed: int = 0
    """Seed of the tokens and perturbations that the check drew."""

    @property
    def margin(self) -> float | None:
        """Distance of `value` from `limit` on the passing side, in `unit`; negative for a failure."""
        if self.value is None or self.limit is None:
            return None
        return self.limit - self.value if self.relation == "<=" else self.value - self.limit

    def to_dict(self) -> dict[str, object]:
        """The record for JSON, with its margin. Infinities and NaN, which JSON lacks, become strings."""
        return plain_dict({**asdict(self), "margin": self.margin})

    def __str__(self) -> str:
        return f"{self.status:<7} {self.id}: {self.message}"


class NotApplicableError(LoopverifyError, unittest.SkipTest):
    """A check does not apply; the message says why. Test runners such as pytest report it as a skip."""


class UnsoundRunError(LoopverifyError):
    """The model's own run is invalid as a reference; `check` is the id of the check that names the fault."""

    def __init__(self, message: str, check: str) -> None:
        super().__init__(message)
        self.check = check


class ConformanceError(LoopverifyError, AssertionError):
    """Checks of a model failed; `results` are the ones that did."""

    def __init__(self, message: str, results: Iterable[CheckResult] = ()) -> None:
        super().__init__(message)
        self.results = tuple(results)


def _bounded(
    relation: Relation,
    value: float,
    limit: float,
    unit: str = "relative",
    *,
    fault: str,
    cause: str,
    remedy: str,
    note: str = "",
) -> Finding:
    held = value <= limit if relation == "<=" else value >= limit  # NaN fails
    measured = f"{value:.3g} against a limit of {limit:.3g} {unit}".rstrip()
    if held:
        message = f"{note} ({measured})" if note else measured
    else:
        message = f"{fault} ({measured}). Likely cause: {cause}. Remedy: {remedy}."
    return Finding(held=held, message=message, value=value, limit=limit, unit=unit, relation=relation)


at_most = partial(_bounded, "<=")
"""at_most(value, limit, unit, fault=, cause=, remedy=, note=) is the finding that `value` is at most `limit`."""
at_least = partial(_bounded, ">=")
"""The same for `value` at least `limit`."""


def none(count: float, unit: str, *, fault: str, cause: str, remedy: str, note: str = "") -> Finding:
    """The finding that `count` is 0, where `unit` names what is counted."""
    return at_most(float(count), 0, unit, fault=fault, cause=cause, remedy=remedy, note=note)


def first_failing(findings: Iterable[Finding]) -> Finding:
    """The first of `findings` that does not hold, without evaluating further ones; the last one if all hold."""
    last = None
    for last in findings:
        if not last.held:
            break
    assert last is not None, "a check must compare something"
    return last
