"""The page's commands: those with output are executed from top to bottom, the others are at least understood."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tyro

from tests.docs.pages import blocks, commands
from train.__main__ import Arguments
from train.machine.hardware import use_precision

ROOT = Path(__file__).parents[2]
PAGE = "one-gpu-to-a-cluster.md"
INTERRUPTED = re.compile(r"timeout --preserve-status --signal (\w+) \d+ (.*); echo \"exit status \$\?\"")


def without_numbers(line: str) -> str:
    """What has to be the same on every machine."""
    return re.sub(r"\b[0-9a-f]{16}\b|[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", " ".join(line.split()))


class Shell:
    """Executes the page's commands in a folder of its own, with the package of this repository."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        self._environment = {**os.environ, "PATH": programs, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}

    def lines(self, command: str) -> list[str]:
        """What a command prints; `timeout` is played by a signal at the first checkpoint rather than by the clock."""
        interrupted = INTERRUPTED.fullmatch(command)
        process = subprocess.Popen(
            shlex.split(interrupted[2] if interrupted else command),
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if interrupted:
            while not list(self._folder.glob("runs/partial/*/step-*")) and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.Signals[f"SIG{interrupted[1]}"])
        told = process.communicate()[0].splitlines()
        if interrupted:
            return [*told, f"exit status {process.returncode}"]
        assert process.returncode == 0, told
        return told


@pytest.mark.slow
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for command, shown in commands(PAGE):
        real = [without_numbers(line) for line in shell.lines(command)]
        missing = [line for line in shown if without_numbers(line) not in real]
        assert missing == [], f"$ {command} does not show this; it shows:\n" + "\n".join(real)
    statuses = [line for _, shown in commands(PAGE) for line in shown if line.startswith("exit status")]
    assert statuses == ["exit status 75"]


@pytest.mark.parametrize(
    "line",
    [
        line
        for page in (PAGE, "training.md")
        for block in blocks(page, "sh")
        for line in block.splitlines()
        if "-m train " in line
    ],
)
def test_commands_that_need_gpus_are_understood(line: str) -> None:
    arguments = shlex.split(line, comments=True)
    arguments = arguments[arguments.index("train") + 1 :]
    if arguments[0] in ("sweep", "data", "dry-run", "reproduce"):
        pytest.skip("its own tests read its arguments")
    parsed = tyro.cli(Arguments, args=arguments)
    precision, _ = use_precision(parsed.computing.precision, "cpu")
    parsed.spec("cpu", precision, ranks=2 if line.startswith("torchrun") else 1)  # refuses what cannot be
