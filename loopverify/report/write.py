"""Write the report's files atomically."""

from __future__ import annotations

import os
from pathlib import Path

from loopverify.replacing import replace_text
from loopverify.report.report import Report

__all__ = ["write"]


def write(report: Report, folder: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """Write 'report.html', 'report.json' and 'report.md' into `folder`, created if missing; returns their paths.

    All views are computed before any file changes, and each file is renamed into place: a reader never sees a partial
    file.

    Raises:
        MissingDependencyError: jinja2 or matplotlib is not installed; nothing is written.
    """
    views = {"html": report.to_html(), "json": report.to_json(), "md": report.to_markdown()}
    html, json, md = (Path(folder) / f"report.{suffix}" for suffix in views)
    for path, text in zip((html, json, md), views.values(), strict=True):
        replace_text(path, text)
    return html, json, md
