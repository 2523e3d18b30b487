"""From gate logits to a distribution over exits, and from a threshold to one exit per token."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["first_reaching", "stick_breaking"]


def stick_breaking(gates: list[Tensor]) -> Tensor:
    """K gate logits (B, T) -> exit probabilities (B, T, K): each exit takes its gate's share of what is left, the
    last exit all of it.

    Computed in the dtype of the gates, as the models do: in half precision, check `exit_half_precision` must see their
    rounding.
    """
    left, probabilities = torch.ones_like(gates[0]), []
    for gate in gates[:-1]:
        share = torch.sigmoid(gate)
        probabilities.append(share * left)
        left = left * (1.0 - share)
    return torch.stack([*probabilities, left], dim=-1)


def first_reaching(probabilities: Tensor, threshold: float) -> Tensor:
    """Exit probabilities (B, T, K) -> (B, T) int64 in 1..K: the first exit at which their cumulative sum reaches
    the threshold; K where it never does.

    The sum is taken in the dtype of the probabilities, as a model's own forward takes it.
    """
    reached = probabilities.cumsum(-1) >= threshold
    first = reached.int().argmax(-1) + 1  # the first of equal values
    return torch.where(reached.any(-1), first, probabilities.shape[-1])
