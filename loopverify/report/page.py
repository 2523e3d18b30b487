"""The report as one HTML file: no script, no external resource, readable in light, dark and print."""

from __future__ import annotations

from importlib.resources import files

from loopverify import __version__
from loopverify.claims.expression import label
from loopverify.claims.p1 import SOURCE
from loopverify.claims.quantity import quantity
from loopverify.errors import MissingDependencyError
from loopverify.report import text
from loopverify.report.figures import draw
from loopverify.report.study import Record

__all__ = ["page"]

_PAPERS = {"P1": SOURCE}
_MARKS = {"held": "✓", "contradicted": "✗", "inconclusive": "?", "not run": "–"}


def page(report: Record) -> str:
    """The page of `report`.

    Raises:
        MissingDependencyError: jinja2 or matplotlib is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise MissingDependencyError(
            "jinja2 is not installed; the HTML report needs it. Install it with: pip install 'loopverify[report]'"
        ) from error
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"label": label, "quantity": quantity}
    template = environment.from_string(files("loopverify.report").joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        report=report,
        columns=text.table_columns(report),
        summary=text.summary(report),
        # The only markup that is not escaped: it is drawn here, and `draw` escapes its strings.
        figures=[(chart, Markup(draw(chart, report.preset))) for chart in report.charts],
        marks=_MARKS,
        papers={
            study: source
            for study, source in _PAPERS.items()
            if any(e.source.startswith(study) for e in report.evidence)
        },
        version=__version__,
    )
