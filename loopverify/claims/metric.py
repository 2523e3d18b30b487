"""Metric names, their units, and the one expression on them: a difference, such as 'ce@1-ce@4'."""

from __future__ import annotations

import re
from collections.abc import Mapping

from loopverify.errors import InputError

__all__ = ["label", "names", "number", "quantity", "unit", "value"]

_NAME = r"[a-z][a-z0-9_]*(?:@\d+)?"
_EXPRESSION = re.compile(rf"({_NAME})(?:-({_NAME}))?")
# What stands before the @ -> (unit, how it is written at loop k)
_KINDS = {
    "norm": ("L2", "‖H_{k}‖₂"),
    "rms": ("rms", "rms(H_{k})"),
    "ce": ("nats", "CE({k})"),
    "ppl": ("", "PPL({k})"),
}


def names(expression: str) -> tuple[str, ...]:
    """The one or two metrics that an expression reads.

    Raises:
        InputError: it is neither a name nor a difference of two.
    """
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        raise InputError(
            f"metric is {expression!r}; expected a name such as 'norm@4', or a difference such as 'ce@1-ce@4'"
        )
    return tuple(name for name in match.groups() if name is not None)


def value(expression: str, metrics: Mapping[str, float]) -> float:
    """The value of an expression, whose names must all be in `metrics`."""
    first, *rest = (metrics[name] for name in names(expression))
    return first - rest[0] if rest else first


def unit(expression: str) -> str:
    """'L2' (norm over channels), 'rms', 'nats' (a token), or '' for a pure number.

    Raises:
        InputError: a difference between two units.
    """
    units = {_KINDS.get(name.split("@")[0], ("", ""))[0] for name in names(expression)}
    if len(units) > 1:
        raise InputError(f"metric {expression!r} subtracts {' from '.join(sorted(units))}; expected one unit")
    return units.pop()


def label(expression: str) -> str:
    """The expression for people: '‖H_4‖₂', 'CE(1) − CE(4)'."""
    written = []
    for name in names(expression):
        kind, _, loop = name.partition("@")
        written.append(_KINDS[kind][1].format(k=loop) if kind in _KINDS else name)
    return " − ".join(written)


def number(x: float, like: float | None = None) -> str:
    """A number at the three digits that a comparison over seeds can carry: 0.116, 37.2, 44, 39,207, 1.1e+09.

    With `like`, at the decimals of that number instead: an error as exact as what it is the error of.
    """
    size = abs(x if like is None else like)
    if not max(size, abs(x)) < 1e6:  # also inf and nan
        return f"{x:.3g}"
    decimals = 0 if size >= 100 or x == round(x) else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{x:,.{decimals}f}"


def quantity(x: float, of: str) -> str:
    """A number with its unit: '×891', '0.116 nats', '39,207 L2'."""
    return f"×{number(x)}" if of == "×" else f"{number(x)} {of}".rstrip()
