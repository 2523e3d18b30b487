"""Tokens on disk: a stream of token ids in memory-mapped shards, read on access.

Shapes: N tokens of the stream, B windows, T tokens per window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Tokens", "dtype_for", "map_ids", "write_ids"]


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The narrower of little-endian uint16 and uint32 that holds every id of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def write_ids(path: Path, rows: Iterable[NDArray[Any]], dtype: np.dtype[Any]) -> int:
    """Write rows of ids one after another, as raw numbers; returns the number of ids."""
    count = 0
    with path.open("wb") as file:
        for row in rows:
            row.astype(dtype, copy=False).tofile(file)
            count += len(row)
    return count


def map_ids(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The ids (n,) that `write_ids` wrote, memory-mapped."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype=dtype, mode="r")


class Tokens:
    """A stream of N token ids in consecutive shards; `len()` is N, `np.asarray()` returns all ids."""

    def __init__(self, shards: Sequence[NDArray[Any]]) -> None:
        """
        Args:
            shards: integers (n_i,), whose lengths add up to N.
        """
        self.shards = tuple(shards)
        self._starts = np.cumsum([0, *(len(shard) for shard in shards)])

    @classmethod
    def of(cls, tokens: Tensor) -> Tokens:
        """A stream of the integers (N,) of a tensor on the CPU."""
        return cls([tokens.numpy()])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.concatenate(self.shards).astype(dtype if dtype is not None else np.int64)

    def at(self, starts: Tensor, length: int) -> Tensor:
        """(B, length) int64: the tokens from each of B positions on, across the boundaries of shards."""
        wanted = starts.numpy()[:, None] + np.arange(length)
        found = np.empty(wanted.shape, np.int64)
        homes = np.searchsorted(self._starts, wanted, side="right") - 1
        for home in np.unique(homes):
            here = homes == home
            found[here] = self.shards[home][wanted[here] - self._starts[home]]
        return torch.from_numpy(found)
