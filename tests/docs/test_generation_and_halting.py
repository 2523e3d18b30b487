"""The page is executed from top to bottom; what it prints is compared with the page but for numbers."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.docs.pages import blocks

PAGE = "generation-and-halting.md"


def without_numbers(text: str) -> list[str]:
    return re.sub(r"-?\d+\.\d+", "#", text).splitlines()


def test_the_page_does_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(PAGE, "python")), encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")
    captured = capsys.readouterr()
    assert captured.err == ""
    assert without_numbers(captured.out) == without_numbers("".join(blocks(PAGE, "text")))
