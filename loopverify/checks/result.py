"""What a check finds and what a run of it ends with, as frozen records; and the two exceptions that carry them."""

from __future__ import annotations

import unittest
from collections.abc import Iterable
from dataclasses import asdict, dataclass
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
]

Status = Literal["passed", "failed", "xfailed", "xpassed", "skipped", "error"]
Relation = Literal["<=", ">="]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check measured, whether it held, and the words for it."""

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
    """The name of the check, as `expected_failures` and pytest's -k know it."""
    model: str
    status: Status
    message: str
    """What was found; for a failure the fault, its likely cause and the remedy; for a skip the reason."""
    value: float | None = None
    """What was measured, in `unit`; None when the check measures nothing."""
    limit: float | None = None
    """What `value` may be, in the same unit."""
    unit: str = ""
    relation: Relation = "<="
    """How `value` must stand to `limit`."""
    dtype: str = ""
    """Of the states."""
    device: str = ""
    seed: int = 0
    """Of the tokens and perturbations that the check drew."""

    @property
    def margin(self) -> float | None:
        """How far `value` is on the good side of `limit`, in `unit`; negative for a failure."""
        if self.value is None or self.limit is None:
            return None
        return self.limit - self.value if self.relation == "<=" else self.value - self.limit

    def to_dict(self) -> dict[str, object]:
        """The record for JSON, with its margin. Infinities and NaN become strings, which JSON can hold."""
        return plain_dict({**asdict(self), "margin": self.margin})

    def __str__(self) -> str:
        return f"{self.status:<7} {self.id}: {self.message}"


class NotApplicableError(LoopverifyError, unittest.SkipTest):
    """A check does not apply; the message says why. Test runners, pytest among them, report it as a skip."""


class UnsoundRunError(LoopverifyError):
    """A run of the model's own is nothing to compare with; `check` is the id of the check that names the fault."""

    def __init__(self, message: str, check: str) -> None:
        super().__init__(message)
        self.check = check


class ConformanceError(LoopverifyError, AssertionError):
    """Checks of a model failed; `results` are the ones that did."""

    def __init__(self, message: str, results: Iterable[CheckResult] = ()) -> None:
        super().__init__(message)
        self.results = tuple(results)


def at_most(value: float, limit: float, unit: str, *, fault: str, cause: str, remedy: str, note: str = "") -> Finding:
    """The finding that `value` is at most `limit`. NaN is not."""
    return _bounded(value <= limit, value, limit, unit, "<=", fault, cause, remedy, note)


def at_least(value: float, limit: float, unit: str, *, fault: str, cause: str, remedy: str, note: str = "") -> Finding:
    """The finding that `value` is at least `limit`. NaN is not."""
    return _bounded(value >= limit, value, limit, unit, ">=", fault, cause, remedy, note)


def _bounded(
    held: bool,
    value: float,
    limit: float,
    unit: str,
    relation: Relation,
    fault: str,
    cause: str,
    remedy: str,
    note: str,
) -> Finding:
    measured = f"{value:.3g} against a limit of {limit:.3g} {unit}".rstrip()
    if held:
        message = f"{note} ({measured})" if note else measured
    else:
        message = f"{fault} ({measured}). Likely cause: {cause}. Remedy: {remedy}."
    return Finding(held=held, message=message, value=value, limit=limit, unit=unit, relation=relation)


def first_failing(findings: Iterable[Finding]) -> Finding:
    """The first of `findings` that does not hold, without looking further; else the last one."""
    last = None
    for last in findings:
        if not last.held:
            break
    assert last is not None, "a check must compare something"
    return last
