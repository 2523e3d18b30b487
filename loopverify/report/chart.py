"""A figure as data: lines over x, or points (x, y) if x is measured as well."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Chart", "Line", "scattered"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One condition over x: mean, smallest and largest finite value over seeds."""

    condition: str
    n: int
    """Number of seeds."""
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
    log: bool = False
    """Whether y is logarithmic."""
    whole_x: bool = False
    """Whether x is a small integer: a loop, an exit."""
    lines: tuple[Line, ...]
    log_x: bool = False
    """Whether x is logarithmic."""
    points: bool = False
    """Whether each seed is a point, since its x is measured; otherwise seeds share x, and a line shows their mean."""


def scattered(condition: str, n: int, xy: Iterable[tuple[float, float]]) -> tuple[Line, ...]:
    """The finite points (x, y) of one condition, sorted by x, as one line; no line if there are none."""
    kept = sorted(pair for pair in xy if all(map(math.isfinite, pair)))
    if not kept:
        return ()
    xs, ys = zip(*kept, strict=True)
    return (Line(condition=condition, n=n, x=xs, mean=ys, low=ys, high=ys),)
