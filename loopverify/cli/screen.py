"""The output of a command: literal text in lines of 100 columns, and an error if it cannot be written."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console

from loopverify.errors import LoopverifyError

__all__ = ["OutputError", "Screen"]

WIDTH = 100


class OutputError(LoopverifyError):
    """The output of a command cannot be written."""


class Screen(Console):
    """A console that prints text literally, including ':smile:' and '[bold]'."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(file=file, emoji=False, markup=False, highlight=False)
        self.width = min(WIDTH, self.width) if self.is_terminal else WIDTH

    def print(self, *objects: Any, **options: Any) -> None:
        """As `rich.console.Console.print`.

        Raises:
            OutputError: the disk is full, or the output's encoding lacks a character.
        """
        try:
            super().print(*objects, **options)
        except (OSError, UnicodeEncodeError) as error:
            self._give_up()
            reason, remedy = _reason(error)
            raise OutputError(f"cannot write the output: {reason}; the result is not shown. {remedy}") from error

    def _give_up(self) -> None:
        """Discard buffered output: Python would try to write it at exit, and print another error."""
        with suppress(OSError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


def _reason(error: OSError | UnicodeEncodeError) -> tuple[str, str]:
    """The reason, and what to do."""
    if isinstance(error, OSError):
        return error.strerror or str(error), "Free some space, or redirect the output"
    missing = error.object[error.start : error.end]
    return f"{error.encoding} has no {missing!r}", "Set PYTHONIOENCODING=utf-8"
