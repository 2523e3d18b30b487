"""The command line as tests call it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["Cli", "installed"]

Cli = Callable[..., tuple[int, str, str]]
"""arguments -> exit status, stdout, stderr as one line"""


def installed(*arguments: str) -> list[str]:
    """The command as it is installed, to be run in a process of its own."""
    return [str(Path(sys.executable).with_name("loopverify")), *arguments]
