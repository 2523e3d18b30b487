"""Pre-emption: a signal that stops a run, at once or at the end of a step."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from loopverify.errors import LoopverifyError

__all__ = ["PREEMPTED", "PreemptedError", "Preemption"]

PREEMPTED = os.EX_TEMPFAIL
"""Exit status 75: stopped by a signal; the same command resumes the run."""
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class PreemptedError(LoopverifyError):
    """The run was stopped by a signal; the same command resumes it."""


class Preemption:
    """Records SIGTERM and SIGUSR1 within `listening`."""

    def __init__(self) -> None:
        self._came: signal.Signals | None = None
        self._deferred = False

    @property
    def pending(self) -> str | None:
        """The name of the signal that has arrived, or None."""
        return None if self._came is None else self._came.name

    @contextmanager
    def listening(self) -> Iterator[Preemption]:
        """Handle the signals for the length of a block, in the main thread: raise PreemptedError, unless deferred."""
        before = {number: signal.signal(number, self._heard) for number in _SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """For the length of a block a signal only sets `pending`, which the block checks where it can stop."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._came = signal.Signals(number)
        if not self._deferred:
            raise PreemptedError(f"stopped by {self._came.name} before a step was done; the same command starts again")
