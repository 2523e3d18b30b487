"""Monitoring a model in training: every few steps its states are measured for changes that the loss may not show."""

from __future__ import annotations

from loopverify.watching.watch import DriftWarning, Look, Watch

__all__ = ["DriftWarning", "Look", "Watch"]
