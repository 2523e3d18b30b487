"""Models for the tests of compare: a toy of closed forms, the reference, and one whose cache may be incomplete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from loopverify.looped import Looped
from loopverify.models import LoopedTransformer, TransformerConfig

V = 6
DELTA = 2.0**-10  # exact in every dtype, so that expected errors are closed forms
TOKENS = torch.tensor([[0, 3, 1], [5, 2, 4]])

Step = Callable[[Tensor, Any, int], Tensor]


def toy(step: Step | None = None, readout: Any = None, dtype: torch.dtype = torch.float64, name: str = "toy") -> Looped:
    """H_0 is the one-hot of the token plus 1, a step doubles (exactly), and the logits are the state."""
    return Looped(
        embed=lambda tokens: (1 + nn.functional.one_hot(tokens, V).to(dtype), None),
        step=step or (lambda state, context, loop: 2 * state),
        readout=readout or (lambda state, context, loop, loops: state),
        trained_loops=4,
        name=name,
    )


def transformer(**options: Any) -> LoopedTransformer:
    torch.manual_seed(1)
    return LoopedTransformer(TransformerConfig(vocab_size=50, **options)).eval()


def some_tokens(vocabulary: int = 50) -> Tensor:
    return torch.randint(vocabulary, (2, 12), generator=torch.Generator().manual_seed(3))


class RunningMean(nn.Module):
    """A causal loop with a cache: a step adds half of the mean of all tokens so far, of the same loop."""

    def __init__(self, slots: str) -> None:
        super().__init__()
        self.slots = slots
        self.embedding = nn.Embedding(V, 8)

    def embed(self, tokens: Tensor) -> tuple[Tensor, None]:
        return self.embedding(tokens), None

    def step(self, state: Tensor, context: None, loop: int) -> Tensor:
        count = torch.arange(1, state.shape[1] + 1)[:, None]
        return state + 0.5 * state.cumsum(1) / count

    def readout(self, state: Tensor, context: None, loop: int, loops: int) -> Tensor:
        return state @ self.embedding.weight.T

    def decode(self, tokens: Tensor, cache: dict[Any, Any] | None, loops: int) -> tuple[Tensor, dict[Any, Any]]:
        state, cache = self.embedding(tokens), dict(cache or {})
        for loop in range(1, loops + 1):
            slot = loop if self.slots == "each loop" else "last loop"
            total, seen = cache.get(slot, (0, 0))
            count = seen + torch.arange(1, state.shape[1] + 1)[:, None]
            sums = total + state.cumsum(1)
            cache[slot] = (sums[:, -1:], seen + state.shape[1])
            state = state + 0.5 * sums / count
        return self.readout(state, None, loops, loops), cache

    def looped(self) -> Looped:
        return Looped(
            embed=self.embed,
            step=self.step,
            readout=self.readout,
            trained_loops=4,
            decode=self.decode,
            paths={"again": lambda tokens, loops: self.decode(tokens, None, loops)[0]},
        )
