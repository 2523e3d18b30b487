"""Training objectives on a trace: (trace, targets) -> named terms that sum to the loss."""

from __future__ import annotations

from loopverify.objectives.compose import ADDITIONS, GATED, LOSSES, Objective, Terms, named
from loopverify.objectives.terms import (
    exit_entropy,
    exit_weighted,
    latent_distance,
    norm_penalty,
    per_loop,
    terminal,
    weighted_exits,
)

__all__ = [
    "ADDITIONS",
    "GATED",
    "LOSSES",
    "Objective",
    "Terms",
    "exit_entropy",
    "exit_weighted",
    "latent_distance",
    "named",
    "norm_penalty",
    "per_loop",
    "terminal",
    "weighted_exits",
]
