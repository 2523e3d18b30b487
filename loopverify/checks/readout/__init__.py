"""The readout: logits, exit gates, norms, reported numbers.

Each module holds the checks of one theme; `THEMES` is the order in which they run.
"""

from __future__ import annotations

from loopverify.checks.readout import exit_gates, numerics, readouts, reports

__all__ = ["THEMES"]

THEMES = (readouts, exit_gates, numerics, reports)
