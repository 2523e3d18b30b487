"""From logits to the next token: the most likely one, or a random draw.

A draw uses one uniform number per row, so that it does not depend on which other rows are still in the batch.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from loopverify.arguments import check_count, check_number

__all__ = ["Sampling"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is chosen: first temperature, then `top_k`, then `top_p` of the remaining probability."""

    temperature: float = 0.0
    """0 takes the most likely token; otherwise logits are divided by it."""
    top_k: int | None = None
    """Number of most likely tokens to sample from; None: all."""
    top_p: float | None = None
    """Sample from the smallest set of most likely tokens whose total probability is at least this (nucleus sampling,
    arXiv:1904.09751); None: all."""

    def __post_init__(self) -> None:
        check_number(
            "temperature",
            self.temperature,
            "0 (the most likely token) or a positive number",
            lambda temperature: 0 <= temperature < math.inf,
        )
        if self.top_k is not None:
            check_count("top_k", self.top_k, "an integer >= 1, or None to sample from all tokens")
        if self.top_p is not None:
            expected = "a probability in (0, 1], or None to sample from all tokens"
            check_number("top_p", self.top_p, expected, lambda p: 0 < p <= 1)

    def choose(self, logits: Tensor, uniform: Tensor | None) -> Tensor:
        """One token for each row of logits (B, V), (B,) int64.

        Args:
            uniform: a random number in [0, 1) for each row, (B,); None takes the most likely tokens.
        """
        if uniform is None:
            return logits.argmax(-1)
        scaled, V = logits.float() / self.temperature, logits.shape[-1]
        if self.top_k is None and self.top_p is None:
            return _drawn(scaled.softmax(-1), uniform)[:, 0]
        values, tokens = scaled.topk(min(self.top_k or V, V), dim=-1)
        p = values.softmax(-1)
        if self.top_p is not None:
            before = p.cumsum(-1) - p
            p = p.masked_fill(before >= self.top_p, 0.0)
        return tokens.gather(-1, _drawn(p, uniform))[:, 0]


def _drawn(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first index in each row of weights (B, n) whose cumulative share exceeds `uniform`, (B, 1) int64."""
    reached = weights.double().cumsum(-1)
    return (reached <= uniform[:, None].double() * reached[:, -1:]).sum(-1, keepdim=True)
