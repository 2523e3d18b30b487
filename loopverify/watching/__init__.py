"""A model watched while it trains: its states inspected every few steps, cheaply, for what the loss may not show."""

from __future__ import annotations

from loopverify.watching.watch import DriftWarning, Look, Watch

__all__ = ["DriftWarning", "Look", "Watch"]
