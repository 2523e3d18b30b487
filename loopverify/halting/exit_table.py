"""The loss and the confidence of every exit of every sequence, from one pass: the data on which `halting` decides.

Shapes: N sequences, K loops, B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from loopverify.arguments import IGNORE, check_count
from loopverify.errors import InputError, unknown
from loopverify.halting.confidence import SCORES, Arrival, Score, named
from loopverify.looped import Looped, Trace
from loopverify.measures.held_out import Batches, Sample, over_batches

__all__ = ["SCORES", "ExitTable", "arrival", "exit_table"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ExitTable:
    """The confidence and the loss of every exit of every sequence. Tensors are float64 on the CPU."""

    score: str
    scores: Tensor
    """c_k, the mean over all T tokens of a sequence, (N, K)."""
    losses: Tensor
    """Cross-entropy of exit k, summed over the tokens that count, nats, (N, K)."""
    sample: Sample

    @property
    def loops(self) -> int:
        """K."""
        return self.losses.shape[1]

    @property
    def exit_losses(self) -> tuple[float, ...]:
        """Cross-entropies of the exits 1..K, nats per token."""
        return tuple((self.losses.sum(0) / self.sample.tokens).tolist())


def exit_table(
    model: Looped,
    batches: Batches,
    loops: int | None = None,
    *,
    score: str | Score = "margin",
    by: Literal["sequence", "token"] = "sequence",
    seed: int = 0,
) -> ExitTable:
    """Score every exit of every sequence in one pass of `loops`.

    Args:
        score: a name in `SCORES`, or a `Score`.
        by: the unit that leaves: a whole sequence, by the mean confidence of its tokens, or each token alone (N is then
            the number of tokens that have a target).

    Raises:
        InputError: the score or the unit is unknown, batches or seed are invalid, or the score does not use every token
            although each is to leave alone.
    """
    score = named(score)
    check_count("seed", seed, "an integer >= 0", least=0)
    if by not in ("sequence", "token"):
        raise unknown("unit of halting", by, ("sequence", "token"))

    def measure(trace: Trace, targets: Tensor) -> tuple[Tensor, Tensor]:
        columns = []
        with torch.no_grad():
            for loop in range(1, trace.loops + 1):
                at = arrival(trace, loop, targets)
                confidence, reading = score.of(at)
                losses = (reading or at.statistics()).loss
                if by == "token":
                    _check_every_token(score, confidence, targets)
                    columns.append((confidence[targets != IGNORE], losses[targets != IGNORE]))
                else:
                    columns.append((confidence.mean(-1), losses.sum(-1)))
        scores, losses = (torch.stack(column, -1).cpu().double() for column in zip(*columns, strict=True))
        return scores, losses

    sample, rows = over_batches(model, batches, loops, measure, seed=seed)
    scores, losses = (torch.cat(column) for column in zip(*rows, strict=True))
    return ExitTable(score=score.name, scores=scores, losses=losses, sample=sample)


def _check_every_token(score: Score, confidence: Tensor, targets: Tensor) -> None:
    if confidence.shape != targets.shape:
        raise InputError(
            f"score {score.name!r} uses {confidence.shape[1]} of {targets.shape[1]} tokens; expected one that uses "
            "every token, so that each can leave alone"
        )


def arrival(trace: Trace, loop: int, targets: Tensor | None = None) -> Arrival:
    """The input of a score after loop `loop` of a trace."""
    return Arrival(
        model=trace.model,
        tokens=trace.tokens,
        before=trace.states[loop - 1],
        after=trace.states[loop],
        context=trace.context,
        loop=loop,
        loops=trace.loops,
        targets=targets,
    )
