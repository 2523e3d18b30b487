"""What loops buy: the cross-entropy of every exit, the gain from depth, and what happens beyond the trained loops."""

from __future__ import annotations

import torch
from torch import Tensor

from loopverify.looped import Trace
from loopverify.objectives.terms import exit_cross_entropy

__all__ = ["exit_losses"]


def exit_losses(trace: Trace, targets: Tensor) -> list[float]:
    """Cross-entropy (nats a token) of the exits 1..K of `trace` against targets (B, T) int64.

    Raises:
        InputError: targets of another dtype or shape.
    """
    with torch.no_grad():
        losses = [exit_cross_entropy(trace, targets, loop) for loop in range(1, trace.loops + 1)]
    values: list[float] = torch.stack(losses).tolist()  # one transfer from the device
    return values
