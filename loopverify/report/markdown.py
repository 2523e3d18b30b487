"""The claims as a Markdown table: the paper's value, the measured value, what is required, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loopverify.claims import Evidence
from loopverify.report.study import Record
from loopverify.report.text import summary

__all__ = ["claim_table", "markdown", "table"]


def markdown(report: Record) -> str:
    """A summary, then one row per claim, in the order of the record; verdicts other than 'held' are in bold."""
    preset = f"Preset {report.preset}, {report.runs} runs. " if report.preset else ""
    return f"{preset}{summary(report)}.\n\n{claim_table(report.evidence)}\n"


def claim_table(evidence: Iterable[Evidence]) -> str:
    """One row per claim; p is that of the test for the claim and of the test against it."""
    rows = [
        (
            f"`{e.claim}`",
            e.published_text,
            e.measured_text,
            e.required_text,
            e.n,
            "–" if e.p_for is None or e.p_against is None else f"{e.p_for:.2g}, {e.p_against:.2g}",
            e.verdict if e.verdict == "held" else f"**{e.verdict}**",
        )
        for e in evidence
    ]
    return table(("claim", "paper", "ours", "required", "n", "p for, against", "verdict"), rows)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table of one line per row; a bar within a cell is escaped."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
