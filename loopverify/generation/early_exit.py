"""Early exits of tokens, and the keys that later tokens see in the loops that such a token has not run.

A token that leaves after loop e has no keys in the loops e + 1..K, to which later tokens that run deeper must attend.
The paper leaves this open (Sharma & Vu 2026, appendix 17). There are three rules, from exact to cheap:

- `recompute`: the missing loops are run when a later token first needs them, for all such tokens in one chunk. A token
  that runs to K then sees what it would see without exits; only loops that no later token needs are saved.
- `copy`: the later loops use the keys and values of loop e, layer by layer.
- `propagate`: keys and values of the later loops are computed from the exit state H_e (one attention per layer).

Shapes: B rows, of which R are still running, V vocabulary, K loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from loopverify.arguments import check_number
from loopverify.errors import unknown
from loopverify.halting.confidence import Arrival, Score, named
from loopverify.halting.token_statistics import logit_statistics
from loopverify.looped import Looped
from loopverify.models.decoding import Sequences

__all__ = ["MISSING", "EarlyExit", "step_with_exits"]

MISSING = ("recompute", "copy", "propagate")


@dataclass(frozen=True, kw_only=True)
class EarlyExit:
    """A token leaves after the first loop whose confidence is above a threshold, or after the last loop."""

    threshold: float
    """`halting.exit_table(..., by="token")` and `halting.calibrate` give one that keeps a perplexity budget."""
    score: str | Score = "margin"
    """A name of `halting.SCORES`, or a score of `halting.confidence`."""
    missing: Literal["recompute", "copy", "propagate"] = "recompute"

    def __post_init__(self) -> None:
        named(self.score)
        if self.missing not in MISSING:
            raise unknown("rule for missing keys", self.missing, MISSING)
        check_number("threshold", self.threshold, "a confidence that an exit has to be above")


@torch.no_grad()
def step_with_exits(model: Looped, held: Sequences, rule: EarlyExit, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Continue every sequence by one token (B,), each up to the exit that the rule selects.

    Returns:
        The logits of the exit that each row took, (B, V), and the index of that exit, 1..K, (B,) int64.
    """
    columns = held.append(tokens[:, None])
    exits = torch.full_like(tokens, held.loops)
    logits: Tensor | None = None
    rows = held.rows
    for loop in range(1, held.loops + 1):
        before = held.cache.states(rows, columns[rows])
        held.advance(loop, rows)
        at = Arrival(
            model=model,
            tokens=tokens[rows, None],
            before=before,
            after=held.cache.states(rows, columns[rows]),
            context=held.context(rows, columns[rows]),
            loop=loop,
            loops=held.loops,
        )
        leave, shown = _leaving(at, rule)
        if leave.any():
            left = rows[leave]
            shown = held.logits(left, columns[left], loop) if shown is None else shown[leave]
            logits = shown.new_empty(len(tokens), shown.shape[-1]) if logits is None else logits
            logits[left], exits[left] = shown[:, 0], loop
            _fill(held, left, columns[left], loop, rule.missing)
            rows = rows[~leave]
        if not len(rows):
            break
    assert logits is not None
    return logits, exits


def _leaving(at: Arrival, rule: EarlyExit) -> tuple[Tensor, Tensor | None]:
    """Whether each row leaves, (R,) bool, and the logits of all rows, (R, 1, V), if they had to be computed."""
    score, last = named(rule.score), at.loop == at.loops
    shown = at.model.readout(at.after, at.context, at.loop, at.loops) if last or score.wants else None
    if last:
        return torch.ones_like(at.tokens[:, 0], dtype=torch.bool), shown
    reading = None if shown is None else logit_statistics(shown, wants=score.wants)
    return score.confidence(at, reading).mean(-1) > rule.threshold, shown


def _fill(held: Sequences, rows: Tensor, columns: Tensor, loop: int, missing: str) -> None:
    """Fill in the keys of the loops that the tokens at rows (R,), columns (R, 1) have not run."""
    if loop == held.loops or missing == "recompute":
        return
    if missing == "copy":
        held.cache.copy(rows, columns, loop)
    else:
        held.propagate(rows, columns, loop)
    held.cache.reach(held.loops, rows, columns, held.cache.states(rows, columns))
