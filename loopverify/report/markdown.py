"""The claims as a Markdown table: the paper's value, the measured value, what is required, and the verdict."""

from __future__ import annotations

from loopverify.report.study import Record
from loopverify.report.text import summary

__all__ = ["markdown"]

_HEADINGS = ("claim", "paper", "ours", "required", "n", "verdict")


def markdown(report: Record) -> str:
    """One row per claim, in the order of the record; verdicts other than 'held' are in bold."""
    rows = [
        (
            f"`{e.claim}`",
            e.published_text,
            e.measured_text,
            e.required_text,
            e.n,
            e.verdict if e.verdict == "held" else f"**{e.verdict}**",
        )
        for e in report.evidence
    ]
    lines = ["| " + " | ".join(cells) + " |" for cells in (_HEADINGS, ["---"] * len(_HEADINGS), *map(_safe, rows))]
    preset = f"Preset {report.preset}, {report.runs} runs. " if report.preset else ""
    return "\n".join([f"{preset}{summary(report)}.", "", *lines, ""])


def _safe(cells: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(cell.replace("|", "\\|") for cell in cells)
