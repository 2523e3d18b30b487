"""Which GPU is a rank's."""

from __future__ import annotations

import pytest

from loopverify.errors import InputError
from train.machine.distributed import _gpu_of


def test_a_rank_takes_the_gpu_of_its_place_or_the_only_one_it_is_given() -> None:
    assert [_gpu_of(local_rank, 4) for local_rank in range(4)] == [0, 1, 2, 3]
    assert [_gpu_of(local_rank, 1) for local_rank in range(4)] == [0, 0, 0, 0]


def test_a_rank_without_a_gpu_is_rejected() -> None:
    with pytest.raises(
        InputError, match="rank 2 of this node has no GPU: torch sees 2 GPUs; expected one for each rank"
    ):
        _gpu_of(2, 2)
