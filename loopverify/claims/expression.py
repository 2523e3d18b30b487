"""Expressions on metrics: one name, a difference such as 'ce@1-ce@4', or a ratio such as 'norm_p99@4/norm_median@4'."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from loopverify.claims.metrics import metric, written
from loopverify.errors import InputError

__all__ = ["label", "names", "unit", "value"]

_NAME = r"[a-z][a-z0-9_]*(?:@[a-z0-9.]*)?"
_EXPRESSION = re.compile(rf"({_NAME})(?:([-/])({_NAME}))?")


def names(expression: str) -> tuple[str, ...]:
    """The one or two metrics that an expression reads.

    Raises:
        InputError: it is not a name, or a difference or ratio of two names.
    """
    first, _, second = _parts(expression)
    return (first,) if second is None else (first, second)


def value(expression: str, metrics: Mapping[str, float]) -> float:
    """The value of an expression, whose names must all be in `metrics`; a ratio to 0 is NaN."""
    first, sign, second = _parts(expression)
    if second is None:
        return metrics[first]
    if sign == "-":
        return metrics[first] - metrics[second]
    return metrics[first] / metrics[second] if metrics[second] else math.nan


def unit(expression: str) -> str:
    """'L2' (norm over channels), 'rms', 'nats' (per token), '×' (a ratio), or '' for a pure number.

    Raises:
        InputError: it has two units, or reads an unknown metric.
    """
    _, sign, _ = _parts(expression)
    units = {metric(name).unit for name in names(expression)}
    if len(units) > 1:
        done = "subtracts {} from {}" if sign == "-" else "takes a ratio of {} and {}"
        raise InputError(f"metric {expression!r} {done.format(*sorted(units))}; expected one unit")
    return "×" if sign == "/" else units.pop()


def label(expression: str) -> str:
    """The expression, human-readable: '‖H_4‖₂', 'CE(1) − CE(4)'.

    Raises:
        InputError: it reads an unknown metric.
    """
    _, sign, _ = _parts(expression)
    return (" − " if sign == "-" else " / ").join(written(name) for name in names(expression))


def _parts(expression: str) -> tuple[str, str | None, str | None]:
    """First name, sign and second name."""
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        raise InputError(
            f"metric is {expression!r}; expected a name such as 'norm@4', a difference such as 'ce@1-ce@4', or a ratio "
            "such as 'norm@4/norm@1'"
        )
    first, sign, second = match.groups()
    return first, sign, second
