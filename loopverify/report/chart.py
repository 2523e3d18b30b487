"""A figure as data: lines over x, or points where x is measured, too."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Chart", "Line", "scattered"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One condition over x: mean, least and largest over seeds (the finite ones among them)."""

    condition: str
    n: int
    """Seeds."""
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure."""

    name: str
    title: str
    x_label: str
    y_label: str
    log: bool
    """Whether y is logarithmic."""
    whole_x: bool
    """Whether x counts something that has no halves and is short: loops, exits."""
    lines: tuple[Line, ...]
    log_x: bool = False
    """Whether x is logarithmic, too."""
    points: bool = False
    """Whether every seed is a point of its own, since x is measured, too; otherwise a line over what seeds share."""


def scattered(condition: str, n: int, xy: Iterable[tuple[float, float]]) -> tuple[Line, ...]:
    """Points (x, y) of one condition, by x, without those that are not finite; nothing where none is left."""
    kept = sorted(pair for pair in xy if all(map(math.isfinite, pair)))
    if not kept:
        return ()
    xs, ys = zip(*kept, strict=True)
    return (Line(condition=condition, n=n, x=xs, mean=ys, low=ys, high=ys),)
