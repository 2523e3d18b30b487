"""Output of a command to the terminal and to files, and errors in writing it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.loopverify.cli.calls import Cli, installed


@pytest.mark.parametrize("command", ["audit", "check"])
def test_the_words_of_a_user_are_shown_as_they_are(cli: Cli, command: str) -> None:
    _, out, _ = cli(command, "mine:words")
    assert ":smile: [bold]x[/bold]" in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full, which is Linux's disk without space")
@pytest.mark.parametrize("command", [["audit", "mine:hidden"], ["doctor"]])
def test_a_full_disk_is_reported_and_is_no_fault_of_the_model(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(installed(*command), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert " ".join(done.stderr.split()) == (
        "error: cannot write the output: No space left on device; the result is not shown. Free some space, or "
        "redirect the output"
    )


def test_an_encoding_that_lacks_a_character_is_reported() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(installed("audit", "mine:raw"), capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "error: cannot write the output: ascii has no " in done.stderr
    assert "Set PYTHONIOENCODING=utf-8" in " ".join(done.stderr.split())


def test_a_file_that_cannot_be_written_is_wrong_use(cli: Cli) -> None:
    status, _, err = cli("claims", "--json", "absent/claims.json")
    assert status == 2
    assert "cannot write absent/claims.json: No such file or directory" in err
