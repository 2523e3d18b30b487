"""Cached decoding through a model's own `embed`, `step` and `readout`: no loop is written here a second time.

A step serves decoding as it is when it mixes tokens through attention alone, and attention keeps its keys and values
in the chunk that the context holds (`Chunk.exchange`). The context of `embed` has to have a method narrowed(chunk): the
context of the tokens of that chunk alone.

Shapes: B rows, R of them at once, t new tokens, q columns, V vocabulary, D channels, K loops.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loopverify.arguments import check_tokens
from loopverify.errors import InputError
from loopverify.looped import Looped
from loopverify.models.cache import Cache, Chunk

__all__ = ["Sequences", "StepwiseDecode", "device_of", "slots_in_use"]


class Sequences:
    """A batch of sequences on their way through a model, with what is held of them.

    `embed` sees whole sequences, as in the full forward, and the new tokens of what it returns are used: positions and
    hooks that look at a place of the sequence mean the same in both. Attention reads the keys of every earlier token
    in every loop and layer; this looks each of them up once more.

    Args:
        model: its embed, step and readout are run. Its training mode is the caller's business.
        rows: B.
        loops: K.

    Attributes:
        cache: what is held.
        rows: the numbers of all rows, (B,) int64.
        executed: tokens put through a loop so far, one loop at a time (padding included).
    """

    def __init__(self, model: Looped, rows: int, loops: int) -> None:
        if loops < 1:
            raise InputError(f"loops is {loops}; expected an integer >= 1")
        device = device_of(model)
        self.loops, self.executed = loops, 0
        self.cache, self.rows = Cache(rows, loops, device), torch.arange(rows, device=device)
        self._model = model
        self._context: Any = None

    @torch.no_grad()
    def extend(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Continue every sequence by tokens (B, t) at full depth; returns the logits of the last exit, (B, t, V).

        Args:
            mask: (B, t) bool, True at real tokens, as of `embed_masked`; all of them when omitted.
        """
        return self.logits(self.rows, self.prefill(tokens, mask), self.loops)

    @torch.no_grad()
    def prefill(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """As `extend`, without logits: returns the columns of the new tokens, (B, t)."""
        columns = self.append(tokens, mask)
        for loop in range(1, self.loops + 1):
            self.advance(loop, self.rows)
        return columns

    def append(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embed new tokens (B, t), which have not run any loop yet; returns their columns, (B, t)."""
        check_tokens(tokens, self._model.vocab_size)
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        columns = self.cache.append(tokens, mask)
        states, self._context = self._model.embed(self.cache.tokens())
        if not hasattr(self._context, "narrowed"):
            raise InputError(
                f"embed returned a {type(self._context).__name__} as context; expected one with a method "
                "narrowed(chunk), as models.layers.Context has, by which it serves some tokens in decoding"
            )
        self.cache.enter(columns, states[self.rows[:, None], self.cache.positions[self.rows[:, None], columns]])
        return columns

    def advance(self, loop: int, rows: Tensor) -> None:
        """Run one loop for all tokens of some rows (R,) that have reached the one before."""
        behind = self.cache.depth[rows, : self.cache.columns] == loop - 1
        count = behind.sum(1)
        # Their columns in order, the last one repeated where a row has fewer: what is computed twice is written twice.
        order = behind.int().argsort(dim=1, descending=True, stable=True)
        place = torch.arange(int(count.max()), device=rows.device)
        columns = order.gather(1, place.minimum(count[:, None] - 1))
        self.executed += int(count.sum())
        self.cache.reach(loop, rows, columns, self._step(rows, columns, range(loop, loop + 1), keys_only=False))

    def propagate(self, rows: Tensor, columns: Tensor, source: int) -> None:
        """Fill the slots of all loops after `source` with the keys and values of H_source itself, at columns (R, q).

        As if every later layer added nothing (the state propagation of CALM, arXiv:2207.07061). One step serves all
        later loops, which are taken to be alike.
        """
        self._step(rows, columns, range(source + 1, self.loops + 1), keys_only=True)

    def logits(self, rows: Tensor, columns: Tensor, loop: int) -> Tensor:
        """Of exit `loop`, at which the tokens at columns (R, q) of rows (R,) have just arrived: (R, q, V)."""
        return self._model.readout(self.cache.states(rows, columns), self.context(rows, columns), loop, self.loops)

    def context(self, rows: Tensor, columns: Tensor) -> Any:
        """The context of some tokens, for a readout."""
        return self._context.narrowed(Chunk(self.cache, range(0), rows, columns))

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone, (R,) int64 or (B,) bool; the others cost nothing from now on."""
        self.cache.keep(self.rows[rows])
        self.rows = torch.arange(self.cache.rows, device=self.rows.device)

    def _step(self, rows: Tensor, columns: Tensor, loops: range, *, keys_only: bool) -> Tensor:
        context = self._context.narrowed(Chunk(self.cache, loops, rows, columns, keys_only=keys_only))
        return self._model.step(self.cache.states(rows, columns), context, loops[0])


class StepwiseDecode:
    """A `Looped.decode` that steps the model loop by loop, so that tokens may leave early.

    It belongs to one view: `Looped` binds it to itself, hence `replace(model, step=other)` decodes with that step.
    """

    def __init__(self, model: Looped | None = None) -> None:
        self._model = model

    def bound_to(self, model: Looped) -> StepwiseDecode:
        return StepwiseDecode(model)

    def begin(self, rows: int, loops: int) -> Sequences:
        """No token yet, of `rows` sequences."""
        assert self._model is not None
        return Sequences(self._model, rows, loops)

    def __call__(self, tokens: Tensor, cache: Sequences | None, loops: int) -> tuple[Tensor, Sequences]:
        """As `Looped.decode`.

        Raises:
            InputError: bad tokens, loops < 1, or other rows or loops than the cache was begun with.
        """
        held = self.begin(len(tokens), loops) if cache is None else cache
        if held.loops != loops:
            raise InputError(f"a cache of {held.loops} loops to continue with {loops}; expected the same number")
        return held.extend(tokens), held


def slots_in_use(cache: Sequences) -> int:
    """As `Looped.cache_slots`."""
    return cache.cache.slots


def device_of(model: Looped) -> torch.device:
    """Where tokens have to be: with the first parameter; on the CPU where there is none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
