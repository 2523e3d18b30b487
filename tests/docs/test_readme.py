"""The first screen: the audit it shows is the one that its code prints, and it stays a first screen."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks

README = "../README.md"
MODEL = blocks("audit-your-own-model.md", "python")[0]


def without_digits(line: str) -> str:
    """A line without its numbers, which differ from machine to machine."""
    return " ".join(re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", line).split())


def test_the_audit_is_the_real_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mylm.py").write_text(MODEL, encoding="utf-8")
    (code,), (shown,) = blocks(README, "python"), blocks(README, "text")
    (tmp_path / "audit.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        runpy.run_path(str(tmp_path / "audit.py"))  # from the random state of the fixture, seed 0
    finally:
        sys.modules.pop("mylm", None)
    real = capsys.readouterr().out.splitlines()
    parts = [part.strip("\n").splitlines() for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE)]
    for part in filter(None, parts):
        first = [without_digits(line) for line in real].index(without_digits(part[0]))
        assert [without_digits(line) for line in real[first : first + len(part)]] == [*map(without_digits, part)]
    assert parts[0][0] == real[0] == "mine under per_loop: BLIND SPOT"
    assert [line for line in real if "hidden; carried" in line or "visible, seen" in line] == parts[1][:2]


def test_it_is_a_first_screen() -> None:
    (code,) = blocks(README, "python")
    assert len([line for line in code.splitlines() if line and "import" not in line]) <= 6
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 130
    assert len(re.findall(r"^\$ ", text, flags=re.MULTILINE)) == 2
