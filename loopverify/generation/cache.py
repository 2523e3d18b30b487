"""The memory of a cached decoder: a key and a value for every (loop, layer), and the state each column has reached.

A column is a place in the sequences of a batch; left padding makes columns that hold no token of a row. A weight-shared
block has different keys in every loop, so K loops of L layers need K·L slots.

Shapes: B rows of a batch, R of them at once, q columns of each, L columns held, N heads, C channels a head, D channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopverify.errors import InputError

__all__ = ["Cache"]


class Cache:
    """Keys, values, positions and states of a batch of sequences; extended in place.

    Args:
        rows: B.
        loops: K.
        layers: of the block.
        device: of everything in it.

    Attributes:
        columns: L, how many columns are held.
        real: (B, capacity) bool, whether a column holds a token of the row.
        positions: (B, capacity) int64, counted from the first real token of the row.
        depth: (B, capacity) int64, the loop that the token has reached; its keys of all loops up to it are held.
    """

    def __init__(self, rows: int, loops: int, layers: int, device: torch.device) -> None:
        self.rows, self.loops, self.layers, self.columns = rows, loops, layers, 0
        self.real = torch.zeros(rows, 0, dtype=torch.bool, device=device)
        self.positions = torch.zeros(rows, 0, dtype=torch.int64, device=device)
        self.depth = torch.zeros(rows, 0, dtype=torch.int64, device=device)
        self._states: Tensor | None = None
        self._slots: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    @property
    def slots(self) -> int:
        """How many (loop, layer) hold keys."""
        return len(self._slots)

    def append(self, state: Tensor, mask: Tensor) -> Tensor:
        """Make room for new tokens of every row, and return their columns, (B, t).

        Args:
            state: H_0 of each, (B, t, D).
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
        self.depth = _put(self.depth, start, torch.zeros_like(mask, dtype=torch.int64))
        held = state.new_empty(self.rows, 0, state.shape[-1]) if self._states is None else self._states
        self._states = _put(held, start, state)
        return torch.arange(start, self.columns, device=mask.device).expand(self.rows, -1)

    def keep(self, rows: Tensor) -> None:
        """Forget all rows but these, (R,) int64, which from now on are rows 0..R - 1."""
        self.rows = len(rows)
        self.real, self.positions, self.depth = self.real[rows], self.positions[rows], self.depth[rows]
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
        slot = self._slots.get((loop, layer))
        parts = (keys, values)
        if slot is None or slot[0].shape[2] < self.columns:
            room = self.real.shape[1]
            held = slot or (None, None)
            slot = tuple(_grown(old, part, self.rows, room) for old, part in zip(held, parts, strict=True))  # type: ignore[assignment]
            assert slot is not None
            self._slots[loop, layer] = slot
        for store, part in zip(slot, parts, strict=True):
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
        for layer in range(self.layers):
            keys, values = (store[rows[:, None], :, columns].transpose(1, 2) for store in self._slots[source, layer])
            for loop in range(source + 1, self.loops + 1):
                self.write(loop, layer, rows, columns, keys, values)


def _put(held: Tensor, start: int, new: Tensor) -> Tensor:
    """`held` (B, capacity, ...) with `new` from column `start` on; in larger memory where it would not fit."""
    stop = start + new.shape[1]
    if held.shape[1] < stop:
        larger = held.new_zeros(held.shape[0], max(stop, 2 * held.shape[1]), *held.shape[2:])
        larger[:, :start] = held[:, :start]
        held = larger
    held[:, start:stop] = new
    return held


def _grown(held: Tensor | None, like: Tensor, rows: int, room: int) -> Tensor:
    """Room for keys (B, N, room, C) with those already held."""
    larger = like.new_zeros(rows, like.shape[1], room, like.shape[3])
    if held is not None:
        larger[:, :, : held.shape[2]] = held
    return larger
