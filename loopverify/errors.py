"""Errors a user can act on: each says what is wrong, the value seen, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["GradientCutError", "InPlaceStepError", "InputError", "LoopverifyError", "MissingDependencyError", "unknown"]


class LoopverifyError(Exception):
    """Base of every error that loopverify raises for its user."""


class InputError(LoopverifyError, ValueError):
    """An argument, a file or a model's output does not have the required form."""


class MissingDependencyError(LoopverifyError, ImportError):
    """A library that one of loopverify's extras would install is missing."""


class InPlaceStepError(LoopverifyError):
    """A step changed or returned the memory of a state that the trajectory still holds."""


class GradientCutError(LoopverifyError):
    """No gradient reaches an earlier state: the recurrence is cut between two loops."""


def unknown(what: str, value: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not in `known`; it lists all known names in the order given."""
    return InputError(f"unknown {what} {value!r}; expected one of: {', '.join(known)}")
