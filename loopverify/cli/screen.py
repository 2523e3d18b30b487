"""What a command shows: text as it is, in lines of 100 columns, and an error where it cannot be written."""

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
    """A console that shows the words of its users as they are: ':smile:' and '[bold]' are words."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(file=file, emoji=False, markup=False, highlight=False)
        self.width = min(WIDTH, self.width) if self.is_terminal else WIDTH

    def print(self, *objects: Any, **options: Any) -> None:
        """As `rich.console.Console.print`.

        Raises:
            OutputError: a full disk, or characters that the encoding of the output lacks.
        """
        try:
            super().print(*objects, **options)
        except (OSError, UnicodeEncodeError) as error:
            self._give_up()
            reason, remedy = _reason(error)
            raise OutputError(f"cannot write the output: {reason}; what was found is not shown. {remedy}") from error

    def _give_up(self) -> None:
        """Let go of what is still to be written, which Python would try once more, and complain, at its end."""
        with suppress(OSError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


def _reason(error: OSError | UnicodeEncodeError) -> tuple[str, str]:
    """Why, and what to do."""
    if isinstance(error, OSError):
        return error.strerror or str(error), "Free some space, or send it elsewhere"
    missing = error.object[error.start : error.end]
    return f"{error.encoding} has no {missing!r}", "Set PYTHONIOENCODING=utf-8"
