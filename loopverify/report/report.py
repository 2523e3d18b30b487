"""Report: the record of a study with its views, and how it is built from runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from loopverify import __version__
from loopverify.claims import CLAIMS, Claim, Run, evaluate, one_study
from loopverify.plain import plain_dict
from loopverify.report.charts import History, charts
from loopverify.report.facts import shared_facts
from loopverify.report.markdown import markdown
from loopverify.report.measured_rows import last_loop, measured_rows
from loopverify.report.page import page
from loopverify.report.study import Record
from loopverify.report.text import plain

__all__ = ["Report", "build"]


class Report(Record):
    """A record with views as terminal text, JSON, Markdown and one HTML file."""

    def to_json(self) -> str:
        """The record as JSON; numbers that JSON lacks become 'nan', 'inf' and '-inf'."""
        record = {
            "loopverify": __version__,
            "title": self.title,
            "preset": self.preset,
            "loops": self.loops,
            "counts": self.counts,
            "strength": self.strength,
            "evidence": [evidence.to_dict() for evidence in self.evidence],
            "rows": self.rows,
            "charts": self.charts,
            "facts": self.facts,
        }
        return json.dumps(plain_dict(record), indent=1, allow_nan=False, ensure_ascii=False)

    def to_html(self) -> str:
        """The record as one self-contained page.

        Raises:
            MissingDependencyError: jinja2 or matplotlib is not installed.
        """
        return page(self)

    def to_markdown(self) -> str:
        """The claims as a Markdown table."""
        return markdown(self)

    def to_text(self, width: int = 100) -> str:
        """The record as plain text, in lines of at most `width` characters (longer words are not broken)."""
        return plain(self, width)


def build(
    runs: Iterable[Run],
    claims: Iterable[Claim] | None = None,
    *,
    histories: Mapping[str, History] | None = None,
    facts: Mapping[str, str] | None = None,
    title: str | None = None,
) -> Report:
    """Judge `claims` on `runs` and gather what the runs measured.

    Args:
        runs: runs of one preset, with each condition and seed at most once.
        claims: all of `loopverify.claims.CLAIMS` when omitted.
        histories: evaluations during training by `Run.key`, for the figure over steps.
        facts: facts of the whole study (wall time, command, ...), shown before those of the runs.

    Raises:
        InputError: runs that must not be compared.
    """
    study = one_study(runs)
    preset = study[0].preset if study else ""
    return Report(
        title=title or (f"Claims on trained models, preset {preset}" if study else "Claims, without any runs"),
        preset=preset,
        loops=last_loop(study),
        evidence=tuple(evaluate(claim, study) for claim in (CLAIMS.values() if claims is None else claims)),
        rows=measured_rows(study),
        charts=charts(study, histories or {}),
        facts=MappingProxyType({**(facts or {}), **shared_facts(study)}),
    )
