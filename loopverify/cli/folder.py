"""The folder given as --runs, for every command line."""

from __future__ import annotations

from pathlib import Path

from loopverify.errors import InputError

__all__ = ["runs_folder"]


def runs_folder(text: str) -> Path:
    """The folder with this name.

    Raises:
        InputError: an empty name, such as that of an unset shell variable, which Path takes for the current folder.
    """
    if not text.strip():
        raise InputError(
            f"--runs is {text!r}; expected a folder for stored runs, such as runs, or . for the current one"
        )
    return Path(text)
