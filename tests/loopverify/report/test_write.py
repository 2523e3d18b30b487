"""The files of a report appear whole or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from loopverify.errors import MissingDependencyError
from loopverify.report import build, write
from tests.loopverify.report.sample import sample_runs


def test_three_files_of_one_record(tmp_path: Path) -> None:
    report = build(sample_runs(1))
    html, json, md = write(report, tmp_path / "deep" / "report")
    assert (html.name, json.name, md.name) == ("report.html", "report.json", "report.md")
    assert html.read_text(encoding="utf-8") == report.to_html()
    assert json.read_text(encoding="utf-8") == report.to_json()
    assert md.read_text(encoding="utf-8") == report.to_markdown()
    assert sorted(path.name for path in html.parent.iterdir()) == ["report.html", "report.json", "report.md"]


def test_a_failed_rename_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report.html").write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write(build([]), tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"report.html": "old"}


def test_nothing_is_written_without_the_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingDependencyError, match="jinja2 is not installed"):
        write(build([]), tmp_path / "report")
    assert list(tmp_path.iterdir()) == []
