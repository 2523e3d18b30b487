"""A figure of ratios: a dot for each median on a logarithmic axis, its range, and its goal if it has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loopverify.report.figures import svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["RatioBar", "draw_ratios"]

_INK = "#808080"  # readable on light and dark pages
_PLOT, _LINE, _CHARACTER = 5.0, 0.2, 0.07  # inches: the plot; a line and a character of its labels
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ratios",
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.edgecolor", "xtick.color", "ytick.color", "axes.labelcolor"), _INK),
}
_REACHED, _MISSED = "#009E73", "#D55E00"


@dataclass(frozen=True, kw_only=True)
class RatioBar:
    """One ratio of costs: below 1 if the first of the two compared is cheaper."""

    label: str
    median: float
    low: float
    high: float
    goal: float | None = None
    """The largest acceptable median."""


def draw_ratios(bars: Sequence[RatioBar]) -> str:
    """The figure as the text of an SVG file; missed goals are orange.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    widest = max((len(line) for bar in bars for line in bar.label.splitlines()), default=0)
    lines = sum(len(bar.label.splitlines()) + 0.3 for bar in bars)
    return svg(lambda axes: _fill(axes, bars), (_PLOT + _CHARACTER * widest, 1 + _LINE * lines), _STYLE)


def _fill(axes: Axes, bars: Sequence[RatioBar]) -> None:
    for place, bar in enumerate(reversed(bars)):
        color = _INK if bar.goal is None else _REACHED if bar.median <= bar.goal else _MISSED
        axes.plot([bar.low, bar.high], [place, place], color=color, linewidth=1.5)
        axes.plot([bar.median], [place], "o", color=color, markersize=5)
        if bar.goal is not None:
            axes.plot([bar.goal], [place], "|", color=color, markersize=11)
    axes.axvline(1.0, color=_INK, linewidth=0.8)
    axes.set_ylim(-1, len(bars))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(bars)), [bar.label for bar in reversed(bars)])
    axes.set_xlabel("ratio: median, range over rounds; |: the goal, an upper bound")
    axes.spines[["top", "right", "left"]].set_visible(False)
