"""The memory of a cached decoder: a key and a value for every (loop, layer), and the state each token has reached.

A column is a place in the sequences of a batch; left padding makes columns that hold no token of a row. A weight-shared
block has different keys in every loop, so K loops of L layers need K·L slots.

Shapes: B rows of a batch, R of them at once, q columns of each, L columns held, N heads, C channels per head, D
channels.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from loopverify.errors import InputError

__all__ = ["Cache", "Chunk"]


class Cache:
    """Tokens, keys, values and states of a batch of sequences; extended in place.

    Args:
        rows: B.
        loops: K.
        device: the device of everything in it.

    Attributes:
        columns: L, how many columns are held.
        real: (B, capacity) bool, whether a column holds a token of the row.
        positions: (B, capacity) int64, counted from the first real token of the row.
        depth: (B, capacity) int64, the loop that the token has reached; its keys of all loops up to it are held.
    """

    def __init__(self, rows: int, loops: int, device: torch.device) -> None:
        self.rows, self.loops, self.columns = rows, loops, 0
        self.real = torch.zeros(rows, 0, dtype=torch.bool, device=device)
        self.positions, self.depth, self._tokens = (
            torch.zeros(rows, 0, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._states: Tensor | None = None
        self._slots: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    @property
    def slots(self) -> int:
        """How many (loop, layer) hold keys."""
        return len(self._slots)

    def append(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Make room for new tokens (B, t) of every row, and return their columns, (B, t).

        Args:
            mask: (B, t) bool, True at real tokens.

        Raises:
            InputError: another number of rows than the cache has.
        """
        if len(mask) != self.rows:
            raise InputError(
                f"{len(mask)} rows to continue a cache of {self.rows}; expected the rows it was begun with"
            )
        start, self.columns = self.columns, self.columns + mask.shape[1]
        count = self.real[:, :start].sum(1, keepdim=True)
        self.real = _put(self.real, start, mask)
        self.positions = _put(self.positions, start, (count + mask.cumsum(1) - 1).clamp_min(0))
        self.depth = _put(self.depth, start, torch.zeros_like(tokens))
        self._tokens = _put(self._tokens, start, tokens)
        return torch.arange(start, self.columns, device=mask.device).expand(self.rows, -1)

    def tokens(self) -> Tensor:
        """The sequences without the padding before them, (B, L): each begins at place 0, and ends in what is none."""
        order = self.real[:, : self.columns].int().argsort(dim=1, descending=True, stable=True)
        return self._tokens.gather(1, order)

    def enter(self, columns: Tensor, states: Tensor) -> None:
        """H_0 (B, t, D) of new tokens, at columns (B, t)."""
        if self._states is None:
            self._states = states.new_empty(self.rows, 0, states.shape[-1])
        self._states = _put(self._states, self.columns - columns.shape[1], states)

    def keep(self, rows: Tensor) -> None:
        """Forget all rows but these, (R,) int64, which from now on are rows 0..R - 1."""
        self.rows = len(rows)
        self.real, self.positions, self.depth, self._tokens = (
            held[rows] for held in (self.real, self.positions, self.depth, self._tokens)
        )
        self._states = None if self._states is None else self._states[rows]
        self._slots = {slot: (keys[rows], values[rows]) for slot, (keys, values) in self._slots.items()}

    def states(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The latest states of rows (R,) at columns (R, q), (R, q, D)."""
        assert self._states is not None
        return self._states[rows[:, None], columns]

    def reach(self, loop: int, rows: Tensor, columns: Tensor, states: Tensor) -> None:
        """Note that tokens have come out of a loop with these states (R, q, D)."""
        assert self._states is not None
        self._states[rows[:, None], columns] = states
        self.depth[rows[:, None], columns] = loop

    def write(self, loop: int, layer: int, rows: Tensor, columns: Tensor, keys: Tensor, values: Tensor) -> None:
        """Hold keys and values (R, N, q, C) of rows (R,) at columns (R, q)."""
        none = keys.new_empty(self.rows, keys.shape[1], 0, keys.shape[3])
        slot = self._slots.get((loop, layer), (none, none))
        if slot[0].shape[2] < self.columns:
            room = self.real.shape[1]
            self._slots[loop, layer] = slot = (_grown(slot[0], 2, room), _grown(slot[1], 2, room))
        for store, part in zip(slot, (keys, values), strict=True):
            store[rows[:, None], :, columns] = part.transpose(1, 2).to(store.dtype)

    def read(self, loop: int, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all columns, each (R, N, L, C)."""
        keys, values = (store[:, :, : self.columns] for store in self._slots[loop, layer])
        return (keys, values) if len(rows) == self.rows else (keys[rows], values[rows])

    def visible(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Who may be attended to by rows (R,) at columns (R, q): (R, 1, q, L) bool.

        Real tokens up to the own column; a padding token attends to itself, so that its softmax has something to sum.
        """
        every = torch.arange(self.columns, device=columns.device)
        own = every == columns[..., None]
        before = every <= columns[..., None]
        return ((before & self.real[rows, None, : self.columns]) | own)[:, None]

    def copy(self, rows: Tensor, columns: Tensor, source: int) -> None:
        """Let every loop after `source` hold the keys and values of that loop, layer by layer, at columns (R, q)."""
        for layer in [layer for loop, layer in self._slots if loop == source]:
            keys, values = (store[rows[:, None], :, columns].transpose(1, 2) for store in self._slots[source, layer])
            for loop in range(source + 1, self.loops + 1):
                self.write(loop, layer, rows, columns, keys, values)


class Chunk:
    """Some tokens of a cached batch on their way through one step: what a `Context` leads attention to.

    The slots of a loop are numbered by the order in which attention asks for them, so that neither the loop nor the
    layer has to be known where keys are made, and a step may use a layer more than once.

    Args:
        loops: those whose slots are written; attention reads those of the first.
        rows, columns: which tokens, (R,) and (R, q).
        keys_only: the step is run for its keys and values alone, and its layers add nothing to the state.

    Attributes:
        positions: (R, q) int64, counted from the first real token of a row.
        visible: who may be attended to, (R, 1, q, L) bool.
    """

    def __init__(self, cache: Cache, loops: range, rows: Tensor, columns: Tensor, *, keys_only: bool = False) -> None:
        self.keys_only = keys_only
        self.positions = cache.positions[rows[:, None], columns]
        self.visible = cache.visible(rows, columns)
        self._cache, self._loops, self._rows, self._columns = cache, loops, rows, columns
        self._layers = itertools.count()

    def exchange(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values (R, N, q, C) of these tokens for those of all columns, each (R, N, L, C)."""
        layer = next(self._layers)
        for loop in self._loops:
            self._cache.write(loop, layer, self._rows, self._columns, keys, values)
        return self._cache.read(self._loops[0], layer, self._rows)


def _put(held: Tensor, start: int, new: Tensor) -> Tensor:
    """`held` (B, capacity, ...) with `new` from column `start` on; in larger memory where it would not fit."""
    stop = start + new.shape[1]
    if held.shape[1] < stop:
        held = _grown(held, 1, max(stop, 2 * held.shape[1]))
    held[:, start:stop] = new
    return held


def _grown(held: Tensor, dim: int, room: int) -> Tensor:
    """`held` with zeros behind it, so that dimension `dim` is `room` long."""
    return F.pad(held, (0, 0) * (held.ndim - dim - 1) + (0, room - held.shape[dim]))
