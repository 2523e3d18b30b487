"""Charts drawn as SVG in the text color of the page: black on a light page, white on a dark one."""

from __future__ import annotations

import html
import io
import itertools
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loopverify.errors import MissingDependencyError
from loopverify.report.chart import Chart, Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "svg"]

_INK = "#010203"  # used for nothing else, so that it can be replaced by the page's color
# Distinguishable on light and dark pages. Warm: scale hidden from the loss; cold: scale under control.
_COLORS = {"rmsnorm": "#D55E00", "layernorm": "#E69F00", "raw": "#2B86CC", "final_only": "#8E6FD0"}
_ADDED, _OTHER = {"penalty": "#009E73", "latent": "#8C6D31"}, "#CC79A7"
_DASHES: dict[str, Any] = {"terminal": (0, (5, 2)), "exit_weighted": (0, (1, 1.5))}
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: selectable, searchable, in the page's font
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _INK,
    "grid.alpha": 0.12,
}


def draw(chart: Chart, preset: str) -> str:
    """The chart as an <svg> element.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    style = _STYLE | {"svg.hashsalt": chart.name}
    return _inline(svg(lambda axes: _fill(axes, chart, preset), (8.2, 3.7), style), chart)


def svg(fill: Callable[[Axes], None], size: tuple[float, float], style: Any) -> str:
    """A figure of `size` inches as the text of an SVG file; `style` are settings of matplotlib.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "matplotlib is not installed; the figures of a report need it. "
            "Install it with: pip install 'loopverify[report]'"
        ) from error
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        fill(figure.add_subplot())
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _fill(axes: Axes, chart: Chart, preset: str) -> None:
    from matplotlib.ticker import MaxNLocator

    seeds = sorted({line.n for line in chart.lines})
    for line in chart.lines:
        _plot(axes, line, chart, label=line.condition + (f" (n = {line.n})" if len(seeds) > 1 else ""))
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(visible=True, axis="y")
    n = f"n = {seeds[0]} seed{'s' if seeds[0] > 1 else ''}" if len(seeds) == 1 else "n by condition"
    axes.set_title(f"preset {preset}, {n}", loc="right", fontsize=9)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, handlelength=3)
    if chart.whole_x:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.log:
        _log_scale(axes, chart)
    if chart.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")


def _plot(axes: Axes, line: Line, chart: Chart, label: str) -> None:
    loss, _, readout = line.condition.partition("/")
    placement, _, added = loss.partition("+")
    color = _ADDED.get(added.partition("=")[0]) or _COLORS.get(readout, _OTHER)
    style: dict[str, Any] = {"linestyle": _DASHES.get(placement, "-"), "linewidth": 1.8}
    if chart.whole_x or chart.points:
        style |= {"marker": "o" if placement == "per_loop" else "s", "markersize": 4.5}
    if chart.points:
        style["linestyle"] = "none"
    axes.plot(line.x, line.mean, color=color, label=label, **style)
    if line.n > 1 and not chart.points:
        axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.18, linewidth=0)


def _log_scale(axes: Axes, chart: Chart) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = [y for line in chart.lines for y in itertools.chain(line.low, line.high) if y > 0]
    decades = math.log10(max(positive) / min(positive)) if positive else 0
    axes.set_yscale("log")
    # Over few decades, powers of ten alone would give too few labels.
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 3 else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _inline(svg: str, chart: Chart) -> str:
    """The <svg> element alone, in the page's text color, with ids that are unique among figures."""
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{chart.name}-", svg)
    # The page sets the size; screen readers read the title.
    svg = re.sub(r' (?:width|height)="[^"]*pt"', "", svg, count=2)
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(chart.title)}"', 1).strip()
