"""Loss, entropy, margin and largest probability of each token, from the logits of one exit.

Shapes: B batch, T tokens, V vocabulary. Half precisions are measured in float32. Losses and entropies are in nats.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from loopverify.arguments import IGNORE, check_vocabulary
from loopverify.errors import InputError
from loopverify.theory.polar import at_least_float32

__all__ = ["entropies", "margins", "mean_counted", "token_losses", "top_probabilities"]


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each token in nats, (B, T, V) and (B, T) int64 -> (B, T); 0 where the target is -100.

    Raises:
        InputError: a target is outside the vocabulary.
    """
    check_vocabulary(targets, logits.shape[-1])
    flat = at_least_float32(logits).flatten(0, -2)
    return F.cross_entropy(flat, targets.flatten(), ignore_index=IGNORE, reduction="none").view(targets.shape)


def entropies(logits: Tensor) -> Tensor:
    """−Σ p log p of each token in nats, (..., V) -> (...)."""
    # entr(p) = −p log p, and 0 at p = 0: a logit of −inf adds nothing.
    terms: Tensor = torch.special.entr(at_least_float32(logits).softmax(-1))
    return terms.sum(-1)


def margins(logits: Tensor) -> Tensor:
    """Largest minus second largest logit of each token, (..., V) -> (...).

    Raises:
        InputError: there is only one logit.
    """
    if logits.shape[-1] < 2:
        raise InputError(f"a margin of {logits.shape[-1]} logits; expected at least two")
    first, second = at_least_float32(logits).topk(2, dim=-1).values.unbind(-1)
    return first - second


def top_probabilities(logits: Tensor) -> Tensor:
    """The largest probability of each token, (..., V) -> (...)."""
    return at_least_float32(logits).softmax(-1).amax(-1)


def mean_counted(values: Tensor, targets: Tensor) -> Tensor:
    """Mean of values (B, T) over the tokens whose target is not -100, a scalar."""
    return values[targets != IGNORE].mean(dtype=torch.promote_types(values.dtype, torch.float32))
