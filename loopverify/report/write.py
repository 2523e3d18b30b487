"""Write the report's files atomically."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

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
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    html, json, md = (_put(place / f"report.{suffix}", text) for suffix, text in views.items())
    return html, json, md


def _put(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
