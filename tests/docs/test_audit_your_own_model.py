"""The page is executed from top to bottom; its output is compared with the real one but for numbers."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from loopverify.cli import main
from loopverify.watching.watch import DriftWarning
from tests.docs.pages import blocks, commands

pytest_plugins = ["pytester"]

PAGE = "audit-your-own-model.md"
Shell = Callable[[str], list[str]]
STATUS = '; echo "exit status $?"'


def without_numbers(line: str) -> str:
    """What has to be the same on every machine."""
    line = re.sub(r"\S*/(?=test_mylm/)", "", line)
    return " ".join(re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", line).split())


def is_shown(line: str, real: set[str]) -> bool:
    """Whether `line` is among `real`. Where a long line was cut moves with its numbers, so its end may differ."""
    wanted = without_numbers(line)
    return any(found.startswith(wanted[:-16]) for found in real) if wanted.endswith("…") else wanted in real


@pytest.fixture
def shell(pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs a command of the page in the folder of its files, in this process."""
    monkeypatch.syspath_prepend(pytester.path)

    def call(command: str) -> list[str]:
        program, *arguments = shlex.split(command.removesuffix(STATUS))
        status, text, said = 0, "", []
        if program == "pytest":
            result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
            status, text = int(result.ret), result.stdout.str()
        elif program == "loopverify":
            status = main(arguments)
        else:
            assert program == "python"
            monkeypatch.setattr(sys, "argv", arguments)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always", DriftWarning)
                runpy.run_path(arguments[0], run_name="__main__")
            said = [f"{Path(w.filename).name}:{w.lineno}: {w.category.__name__}: {w.message}" for w in warned]
        captured = capsys.readouterr()
        assert captured.err == ""
        lines = said + (text or captured.out).splitlines()
        return [*lines, f"exit status {status}"] if command.endswith(STATUS) else lines

    return call


def test_the_page_does_what_it_says(shell: Shell, pytester: pytest.Pytester) -> None:
    own = {"mylm", "factory", "raw"}
    for block in blocks(PAGE, "python"):
        name = re.match(r"# (\S+\.py)\n", block)
        assert name is not None, f"a block of Python names its file: {block.splitlines()[0]}"
        (pytester.path / name[1]).write_text(block, encoding="utf-8")
    try:
        for command, shown in commands(PAGE):
            real = {without_numbers(line) for line in shell(command)}
            missing = [line for line in shown if line.strip() != "..." and not is_shown(line, real)]
            assert missing == [], f"$ {command} does not show this; it shows:\n" + "\n".join(sorted(real))
    finally:
        for name in own & sys.modules.keys():
            del sys.modules[name]


def test_the_page_is_about_a_model_of_thirty_lines_and_a_factory_of_six() -> None:
    model, factory = blocks(PAGE, "python")[:2]
    assert "loopverify" not in model
    assert len([line for line in model.splitlines()[1:] if line]) <= 30
    assert len([line for line in factory.splitlines()[1:] if line]) <= 6
    verdicts = [
        shown[0].rpartition(": ")[2] for command, shown in commands(PAGE) if command.startswith("loopverify audit")
    ]
    assert verdicts == ["BLIND SPOT", "CONTROLLED", "CONTROLLED"]
