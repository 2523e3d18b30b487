"""The command itself: its arguments, its extra, and its exit status."""

from __future__ import annotations

import subprocess
import sys

import pytest

from loopverify.cli import main
from tests.loopverify.cli.calls import installed


@pytest.mark.parametrize("arguments", [[], ["audit"], ["dance"], ["audit", "mine:hidden", "--loops", "many"]])
def test_arguments_that_do_not_parse_are_wrong_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize("library", ["rich", "tyro"])
def test_without_the_extra_the_command_says_how_to_get_it(library: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; from loopverify.cli import main; sys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {library} is not installed; the command line needs it. "
        "Install it with: pip install 'loopverify[cli]'\n"
    )


def test_the_installed_command_ends_with_the_status() -> None:
    done = subprocess.run(installed("claims", "--runs", "absent"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no stored runs in absent")
