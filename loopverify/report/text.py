"""The report as plain text for a terminal, without a library for tables."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from loopverify.claims import Evidence
from loopverify.claims.quantity import number
from loopverify.report.measured_rows import Row
from loopverify.report.study import Record

__all__ = ["plain", "summary", "table_columns"]

_INDENT = " " * 14


def summary(report: Record) -> str:
    """'23 claims: 20 held, 1 contradicted, 2 inconclusive, 0 not run'."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items())
    return f"{len(report.evidence)} claim{'' if len(report.evidence) == 1 else 's'}: {counts}"


def plain(report: Record, width: int) -> str:
    """The whole report as text."""
    parts = [
        report.title,
        "\n".join(line for evidence in report.evidence for line in _claim(evidence, width)),
        _table(table_columns(report), width) if report.rows else "",
        "\n".join(line for name, fact in report.facts.items() for line in _wrapped(f"{name}: {fact}", width, "", "  ")),
        "\n".join(_wrapped(" ".join([f"{summary(report)}.", report.strength]), width)),
    ]
    return "\n\n".join(part for part in parts if part)


def table_columns(report: Record) -> list[tuple[str, list[str]]]:
    """The measured table as one (heading, cells) per column; the paper's columns are last."""
    rows = report.rows
    exits = [(f"PPL at {k}", [number(row.perplexity[k - 1]) for row in rows]) for k in range(1, report.loops + 1)]
    sizes = dict.fromkeys(size for row in rows for size in row.published_norm)
    return [
        ("condition", [row.condition for row in rows]),
        ("n", [str(len(row.seeds)) for row in rows]),
        (f"‖H_{report.loops}‖₂", [_norm(row) for row in rows]),
        *exits,
        *((f"paper {size.upper()}: ‖H_4‖₂, PPL", [_published(row, size) for row in rows]) for size in sizes),
    ]


def _norm(row: Row) -> str:
    norm = "–" if row.norm is None else str(row.norm)
    return norm + (f" ({len(row.diverged)} diverged)" if row.diverged else "")


def _published(row: Row, size: str) -> str:
    if size not in row.published_norm:
        return "–"
    return f"{row.published_norm[size]}, {row.published_perplexity[size]:.2f}"


def _claim(e: Evidence, width: int) -> list[str]:
    parts = [f"{e.measured_text}, required {e.required_text}; paper {e.published_text}"]
    if e.verdict != "held":
        parts += [e.sentence, e.basis]
    lines = [line for part in parts for line in _wrapped(part, width, _INDENT)]
    return [f"{e.verdict:<{len(_INDENT)}}{e.claim} (n = {e.n})", *lines]


def _wrapped(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        width=max(width, len(_INDENT) + 20),
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(columns: Sequence[tuple[str, list[str]]], width: int) -> str:
    """As many columns as fit, the first one left-aligned, the others right-aligned."""
    drawn: list[list[str]] = []
    used = 0
    for place, (heading, cells) in enumerate(columns):
        wide = max(map(len, [heading, *cells]))
        if place and used + 2 + wide > width:
            break
        used += 2 + wide
        drawn.append([cell.ljust(wide) if place == 0 else cell.rjust(wide) for cell in [heading, *cells]])
    return "\n".join("  ".join(line).rstrip() for line in zip(*drawn, strict=True))
