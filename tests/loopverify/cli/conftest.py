"""A user's folder and command line."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from loopverify.cli import main
from tests.loopverify.cli.calls import Cli


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with models; modules imported from it are unloaded afterwards."""
    shutil.copy(Path(__file__).with_name("mine.py"), tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Calls the command line: (exit status, stdout, stderr as one line)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        out, err = capsys.readouterr()
        assert all(len(line) <= 100 for line in (out + err).splitlines())
        sys.modules.pop("mine", None)
        return status, out, " ".join(err.split())

    return call
