"""How an exit gate becomes a distribution over exits, and a threshold a choice among them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["first_reaching", "stick_breaking"]


def stick_breaking(gates: list[Tensor]) -> Tensor:
    """K gate logits (B, T) -> exit probabilities (B, T, K): each exit takes its share of what is left, the last all.

    In the dtype of the gates: half precisions are kept, so that their rounding can be seen.
    """
    left, probabilities = torch.ones_like(gates[0]), []
    for gate in gates[:-1]:
        share = torch.sigmoid(gate)
        probabilities.append(share * left)
        left = left * (1.0 - share)
    return torch.stack([*probabilities, left], dim=-1)


def first_reaching(probabilities: Tensor, threshold: float) -> Tensor:
    """Exit probabilities (B, T, K) -> (B, T) int64 in 1..K: the first exit by which they sum to the threshold.

    K where they never do. The sum is taken in the dtype of the probabilities, as a model's own forward takes it.
    """
    reached = probabilities.cumsum(-1) >= threshold
    first = reached.int().argmax(-1) + 1  # the first of equal values
    return torch.where(reached.any(-1), first, probabilities.shape[-1])
