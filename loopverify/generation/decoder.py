"""Decoding step by step: each new token runs as many loops as it needs, rows of a batch independently of each other.

Shapes: B rows, R of them at once, t new tokens, q columns, V vocabulary, D channels, K loops.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.arguments import check_count, check_kind, check_tokens
from loopverify.errors import InputError
from loopverify.generation.block import propagate, run_loop
from loopverify.generation.cache import Cache
from loopverify.generation.exits import EarlyExit
from loopverify.halting.confidence import Arrival, named
from loopverify.halting.token_statistics import logit_statistics
from loopverify.looped import Looped
from loopverify.models import LoopedTransformer

__all__ = ["Decoder", "Step", "transformer"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """What one new token of every row shows."""

    logits: Tensor
    """Of the exit that each row took, (B, V)."""
    exits: Tensor
    """Which one, 1..K, (B,) int64."""


class Decoder:
    """A batch of sequences under way.

    Args:
        model: a LoopedTransformer, or its own `Looped` view. Its training mode is the caller's business.
        rows: B.
        loops: K; the trained loops when omitted.
        early_exit: when a token leaves early; None: all run to K.

    Attributes:
        cache: what is held.
        executed: tokens put through a loop so far, a loop at a time (padding included).

    Raises:
        InputError: another model, no rows, loops below 1, or an `early_exit` of another kind.
    """

    def __init__(
        self,
        model: LoopedTransformer | Looped,
        rows: int,
        loops: int | None = None,
        early_exit: EarlyExit | None = None,
    ) -> None:
        self.module = transformer(model)
        self.loops = self.module.config.trained_loops if loops is None else loops
        check_count("rows", rows)
        check_count("loops", self.loops)
        if early_exit is not None:
            check_kind("early_exit", early_exit, EarlyExit, "an EarlyExit(threshold=...), or None for full depth")
        device = self.module.embedding.weight.device
        self.cache = Cache(rows, self.loops, len(self.module.layers), device)
        self.executed = 0
        self._exit = early_exit
        self._score = None if early_exit is None else named(early_exit.score)
        self._rows = torch.arange(rows, device=device)
        self._view = self.module.looped()

    @torch.no_grad()
    def extend(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Continue every sequence by tokens (B, t) at full depth; returns the states H_K, (B, t, D).

        Args:
            mask: (B, t) bool, True at real tokens, as of `embed_masked`; all of them when omitted.
        """
        columns = self._append(tokens, mask)
        for loop in range(1, self.loops + 1):
            self._advance(loop, self._rows)
        return self.cache.states(self._rows, columns)

    def logits(self, state: Tensor) -> Tensor:
        """The last exit of states (..., D), (..., V)."""
        return self._view.readout(state, None, self.loops, self.loops)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Step:
        """Continue every sequence by one token (B,), which may leave early."""
        columns = self._append(tokens[:, None], None)
        exits = torch.full_like(tokens, self.loops)
        logits: Tensor | None = None
        rows = self._rows
        for loop in range(1, self.loops + 1):
            before = self.cache.states(rows, columns[rows])
            self._advance(loop, rows)
            at = self._arrival(tokens[rows], before, self.cache.states(rows, columns[rows]), loop)
            leave, shown = self._leaving(at)
            if leave.any():
                left = rows[leave]
                shown = self._view.readout(at.after[leave], None, loop, self.loops) if shown is None else shown[leave]
                logits = shown.new_empty(len(tokens), shown.shape[-1]) if logits is None else logits
                logits[left], exits[left] = shown[:, 0], loop
                self._fill(left, columns[left], loop)
                rows = rows[~leave]
            if not len(rows):
                break
        assert logits is not None
        return Step(logits=logits, exits=exits)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone, (R,) int64 or (B,) bool; the others cost nothing from now on."""
        self.cache.keep(self._rows[rows])
        self._rows = torch.arange(self.cache.rows, device=self._rows.device)

    def _append(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        check_tokens(tokens, self.module.config.vocab_size)
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        return self.cache.append(self.module.embed(tokens)[0], mask)

    def _advance(self, loop: int, rows: Tensor) -> None:
        """Run one loop for all tokens of some rows that have reached the one before."""
        behind = self.cache.depth[rows, : self.cache.columns] == loop - 1
        count = behind.sum(1)
        # Their columns in order, the last one repeated where a row has fewer: what is computed twice is written twice.
        order = behind.int().argsort(dim=1, descending=True, stable=True)
        place = torch.arange(int(count.max()), device=rows.device)
        columns = order.gather(1, place.minimum(count[:, None] - 1))
        self.executed += int(count.sum())
        run_loop(self.module, self.cache, loop, rows, columns)

    def _arrival(self, tokens: Tensor, before: Tensor, after: Tensor, loop: int) -> Arrival:
        return Arrival(
            model=self._view,
            tokens=tokens[:, None],
            before=before,
            after=after,
            context=None,
            loop=loop,
            loops=self.loops,
        )

    def _leaving(self, at: Arrival) -> tuple[Tensor, Tensor | None]:
        """Which rows leave, (R,) bool, and the logits of all of them, (R, 1, V), if they had to be looked at."""
        last = at.loop == at.loops
        wants: frozenset[str] = frozenset() if self._score is None else self._score.wants
        shown = self._view.readout(at.after, None, at.loop, at.loops) if last or wants else None
        if last or self._exit is None or self._score is None:
            return torch.full_like(at.tokens[:, 0], last, dtype=torch.bool), shown
        reading = logit_statistics(shown, wants=wants) if shown is not None else None
        return self._score.confidence(at, reading).mean(-1) > self._exit.threshold, shown

    def _fill(self, rows: Tensor, columns: Tensor, loop: int) -> None:
        """Give later tokens something to find in the loops that tokens at rows (R,), columns (R, 1) have not run."""
        if self._exit is None or loop == self.loops or self._exit.missing == "recompute":
            return
        if self._exit.missing == "copy":
            self.cache.copy(rows, columns, loop)
        else:
            propagate(self.module, self.cache, loop, rows, columns)
        self.cache.reach(self.loops, rows, columns, self.cache.states(rows, columns))


def transformer(model: LoopedTransformer | Looped) -> LoopedTransformer:
    """The reference transformer behind a model.

    Raises:
        InputError: something else, or a `Looped` that does not run it as it is.
    """
    module = model.module if isinstance(model, Looped) else model
    if isinstance(module, LoopedTransformer):
        own = module.looped()
        if not isinstance(model, Looped) or all(
            getattr(model, part) == getattr(own, part) for part in ("embed", "step", "readout")
        ):
            return module
    raise InputError(
        f"cached generation got {model.name if isinstance(model, Looped) else type(model).__name__!r}; expected a "
        "LoopedTransformer or its own looped(), whose layers it runs with keys and values of its own"
    )
