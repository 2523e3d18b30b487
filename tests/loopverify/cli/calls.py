"""The command line as tests call it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["Cli", "installed"]

Cli = Callable[..., tuple[int, str, str]]
"""arguments -> exit status, stdout, stderr as one line"""


def installed(*arguments: str) -> list[str]:
    """The installed command, to be run in a separate process."""
    return [str(Path(sys.executable).with_name("loopverify")), *arguments]
