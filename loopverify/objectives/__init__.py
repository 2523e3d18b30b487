"""Training objectives on a trace: (trace, targets) -> named terms that sum to the loss."""

from __future__ import annotations

from loopverify.objectives.compose import Objective, Terms, named
from loopverify.objectives.terms import norm_penalty, per_loop, terminal

__all__ = ["Objective", "Terms", "named", "norm_penalty", "per_loop", "terminal"]
