"""Every exit of every sequence from one pass: what it costs and how sure it is. What `halting` decides on.

Shapes: N sequences, K loops, B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from loopverify.errors import unknown
from loopverify.looped import Looped, Trace
from loopverify.probes.heldout import Batches, Sample, over_batches
from loopverify.probes.scoring import entropies, margins, token_losses, top_probabilities
from loopverify.theory import polar

__all__ = ["SCORES", "ExitTable", "exit_table"]


def _settling(trace: Trace, loop: int) -> Tensor:
    before, after = (polar.at_least_float32(trace.states[k]) for k in (loop - 1, loop))
    size = polar.scale(after)
    change = polar.scale(after - before)
    return -torch.where(change == 0, change, change / size)


SCORES: Mapping[str, Callable[[Trace, int, Tensor], Tensor]] = MappingProxyType(
    {
        "margin": lambda trace, loop, logits: margins(logits),
        "max_probability": lambda trace, loop, logits: top_probabilities(logits),
        "negative_entropy": lambda trace, loop, logits: -entropies(logits),
        "state_change": lambda trace, loop, logits: _settling(trace, loop),
    }
)
"""Confidence of each token at an exit, (B, T), larger where the exit is surer: top-1 minus top-2 logit (the paper's),
largest probability, −entropy (nats), and −rms(H_k − H_{k−1})/rms(H_k)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ExitTable:
    """Every exit of every sequence, from one pass: all that a halting rule needs. float64 on the CPU."""

    score: str
    scores: Tensor
    """c_k, the mean over all T tokens of a sequence, (N, K)."""
    losses: Tensor
    """Cross-entropy of exit k summed over the tokens that count, nats, (N, K)."""
    sample: Sample

    @property
    def loops(self) -> int:
        """K."""
        return self.losses.shape[1]

    @property
    def exit_losses(self) -> tuple[float, ...]:
        """Cross-entropy of the exits 1..K, nats a token."""
        return tuple((self.losses.sum(0) / self.sample.tokens).tolist())


def exit_table(
    model: Looped, batches: Batches, loops: int | None = None, *, score: str = "margin", seed: int = 0
) -> ExitTable:
    """Score every exit of every sequence in one pass of `loops`; raises as `halting`."""
    if score not in SCORES:
        raise unknown("halting score", score, SCORES)

    def measure(trace: Trace, targets: Tensor) -> tuple[Tensor, Tensor]:
        columns = []
        with torch.no_grad():
            for loop in range(1, trace.loops + 1):
                logits = trace.logits(loop)
                confidence = SCORES[score](trace, loop, logits).mean(-1)
                columns.append((confidence, token_losses(logits, targets).sum(-1)))
        scores, losses = (torch.stack(column, -1).cpu().double() for column in zip(*columns, strict=True))
        return scores, losses

    sample, rows = over_batches(model, batches, loops, measure, seed=seed)
    scores, losses = (torch.cat(column) for column in zip(*rows, strict=True))
    return ExitTable(score=score, scores=scores, losses=losses, sample=sample)
