"""The command line: `loopverify audit | check | doctor | claims`. Exit status: 0 held, 1 fell short, 2 wrong use."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` is `sys.argv[1:]` when omitted.

    Returns:
        0: the property holds; 1: something fell short (a blind spot, a failed check, a contradicted claim); 2: wrong
        use.
    """
    try:
        from loopverify.cli.commands import run
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        if library not in ("rich", "tyro"):
            raise
        sys.stderr.write(
            f"error: {library} is not installed; the command line needs it. "
            "Install it with: pip install 'loopverify[cli]'\n"
        )
        return 2
    return run(argv)
