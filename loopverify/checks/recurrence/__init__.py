"""The recurrence itself: states in order, memory, gradients, depth, scale.

Each module holds the checks of one theme; `THEMES` is the order in which they run.
"""

from __future__ import annotations

from loopverify.checks.recurrence import depth, determinism, gradients, memory, scale, structure, trajectory

__all__ = ["THEMES"]

THEMES = (trajectory, memory, structure, determinism, gradients, depth, scale)
