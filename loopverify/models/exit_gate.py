"""Learned exits (Ouro, arXiv:2510.25741): a gate a loop, and the distribution over exits that the gates make up.

Shapes: B batch, T tokens, D channels, K loops; "..." any leading dimensions. Gate logits g_1..g_{K-1} are those of
every loop but the last, which takes whoever is still there. Exit k then has the probability
p_k = λ_k Π_{j<k} (1 − λ_j), with λ_k = σ(g_k) and λ_K = 1.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopverify.errors import InputError

__all__ = ["ExitGate", "exit_distribution", "first_exit"]


class ExitGate(nn.Module):
    """g = ⟨w, x⟩ + b of what an exit shows to its head.

    Behind a normalized readout the gate thus sees as little of the scale as the logits do. It starts at zero, λ = 1/2
    for every token, and takes no random numbers: a model has the same initial weights with a gate and without.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, shown: Tensor) -> Tensor:
        """(..., D) -> gate logits (...), in float32 at least."""
        logits = shown @ self.weight + self.bias
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def exit_distribution(logits: Tensor) -> Tensor:
    """Gate logits (..., K - 1) -> exit probabilities (..., K), in the dtype of the logits; they sum to 1."""
    leave = torch.sigmoid(logits)
    # σ(−g) rather than 1 − σ(g): a strong gate leaves a little, not nothing.
    left = F.logsigmoid(-logits).cumsum(-1).exp()
    one = logits.new_ones((*logits.shape[:-1], 1))
    return torch.cat((leave, one), -1) * torch.cat((one, left), -1)


def first_exit(logits: Tensor, threshold: float) -> Tensor:
    """Gate logits (..., K - 1) -> (...) int64 in 1..K: the first exit whose cumulative probability is >= threshold.

    Decided on the logarithm of what is left, Σ_{j<=k} log(1 − λ_j) <= log(1 − threshold), which has no rounding to
    fear at either end: a threshold of 1 waits for the last exit however strong the gates are.

    Raises:
        InputError: the threshold is not a number in 0..1.
    """
    if not 0 <= threshold <= 1:
        raise InputError(f"the exit threshold is {threshold!r}; expected a cumulative probability in 0..1")
    bound = math.log1p(-threshold) if threshold < 1 else -math.inf
    stays = F.logsigmoid(-logits).cumsum(-1) > bound
    return 1 + stays.sum(-1)
