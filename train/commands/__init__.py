"""The commands of `python -m train`, each a `main(arguments, console)` that returns an exit status.

A command raises a `LoopverifyError` for wrong use; `train.__main__` reports it on the console, which is standard error.
"""

from __future__ import annotations

__all__ = ["DONE", "FELL_SHORT"]

DONE, FELL_SHORT = 0, 1
