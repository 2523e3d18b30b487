"""Errors a user can act on: each says what is wrong, the value seen, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["GradientCutError", "InPlaceStepError", "InputError", "LoopverifyError", "MissingDependencyError", "unknown"]


class LoopverifyError(Exception):
    """Base of every error that loopverify raises for its user."""


class InputError(LoopverifyError, ValueError):
    """An argument, a file or a model's output is not of the form that was asked for."""


class MissingDependencyError(LoopverifyError, ImportError):
    """A library that an extra of loopverify brings is not installed."""


class InPlaceStepError(LoopverifyError):
    """A step changed, or handed back, the memory of a state that the trajectory still holds."""


class GradientCutError(LoopverifyError):
    """No gradient reaches an earlier state: the recurrence is cut between two loops."""


def unknown(what: str, value: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not one of `known`, listing them all in the order given."""
    return InputError(f"unknown {what} {value!r}; expected one of: {', '.join(known)}")
