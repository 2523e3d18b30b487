"""Tokens on disk: what is read is what was written, for all boundaries of shards and widths of ids."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from train.data.shards import Tokens, dtype_for, map_ids, write_ids
from train.data.windows import Windows


@pytest.mark.parametrize(("vocab_size", "bytes_each"), [(2, 2), (2**16, 2), (2**16 + 1, 4), (2**32, 4)])
def test_ids_are_as_narrow_as_their_vocabulary_allows(tmp_path: Path, vocab_size: int, bytes_each: int) -> None:
    ids = np.array([0, 1, vocab_size - 1])
    dtype = dtype_for(vocab_size)
    assert write_ids(tmp_path / "ids.bin", [ids[:1], ids[1:]], dtype) == 3
    assert (tmp_path / "ids.bin").read_bytes() == b"".join(int(i).to_bytes(bytes_each, "little") for i in ids)
    mapped = map_ids(tmp_path / "ids.bin", dtype)
    assert isinstance(mapped, np.memmap)
    assert mapped.tolist() == ids.tolist()


def test_an_empty_shard_is_a_shard(tmp_path: Path) -> None:
    assert write_ids(tmp_path / "none.bin", [], dtype_for(9)) == 0
    assert len(map_ids(tmp_path / "none.bin", dtype_for(9))) == 0


@pytest.mark.parametrize("cuts", [[], [7], [1, 2, 3, 4], [0, 0, 50, 50, 99, 100, 100]])
def test_windows_do_not_see_where_shards_are_joined(cuts: list[int]) -> None:
    stream = torch.randint(2**16, (100,), generator=torch.Generator().manual_seed(0))
    bounds = [0, *cuts, 100]
    shards = [stream[a:b].numpy().astype(np.uint16) for a, b in pairwise(bounds)]
    tokens = Tokens(shards)
    assert len(tokens) == 100
    assert np.array_equal(tokens, stream.numpy())
    whole, cut = Windows(stream, 8, 3), Windows(tokens, 8, 3)
    assert len(whole) == len(cut) == 31
    for a, b in zip(whole.batch(range(31)), cut.batch(range(31)), strict=True):
        assert a.dtype == b.dtype == torch.int64
        assert torch.equal(a, b)
    for a, b in zip(whole.evenly_spaced(7, 2), cut.evenly_spaced(7, 2), strict=True):
        assert torch.equal(torch.cat(a), torch.cat(b))
