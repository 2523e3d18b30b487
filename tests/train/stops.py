"""Signals without a process to send them to."""

from __future__ import annotations

from train.resume.preemption import Preemption


class After(Preemption):
    """A signal that comes after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    @property
    def pending(self) -> str | None:
        self._left -= 1
        return "SIGTERM" if self._left <= 0 else None
