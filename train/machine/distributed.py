"""The processes (ranks) that train one run together, as torchrun or Slurm starts them, and their communication.

Decisions are exchanged on the CPU (gloo), so that they do not wait for the queue of an accelerator; gradients by NCCL.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from loopverify.errors import InputError
from train.store import StoreError

__all__ = ["ALONE", "Ranks", "joined"]

T = TypeVar("T")
_PATIENCE = timedelta(days=1)
"""Timeout of collective operations: the first rank may wait for the lock of a run that another worker trains. A dead
rank needs no timeout, since torchrun ends the others."""


@dataclass(frozen=True)
class Ranks:
    """One of `count` processes that train a run together; for one process all operations are trivial."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this rank accesses the store and reports."""
        return self.rank == 0

    def share(self, indices: Tensor) -> Tensor:
        """This rank's share of the indices of a batch (B,); shares differ by at most one.

        Raises:
            InputError: there are more ranks than windows in the batch.
        """
        if len(indices) < self.count:
            raise InputError(
                f"{self.count} ranks share a batch of {len(indices)} windows; expected at least one window per rank"
            )
        return indices.tensor_split(self.count)[self.rank]

    def largest_share(self, batch: int) -> int:
        """Windows of the largest share of a batch."""
        return math.ceil(batch / self.count)

    def highest(self, value: int) -> int:
        """The maximum of the ranks' values."""
        if self.count == 1:
            return value
        largest = torch.tensor(value)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def broadcast(self, value: T) -> T:
        """The first rank's value, of plain Python types, on all ranks."""
        if self.count == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box)
        received: T = box[0]
        return received

    def average_(self, tensor: Tensor) -> Tensor:
        """The mean over the ranks, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
            tensor /= self.count
        return tensor

    def together(self, action: Callable[[], T]) -> T:
        """Run `action` on all ranks and return this rank's result; if one rank fails, all raise.

        Raises:
            StoreError: this rank's error, or one that reports that another rank has failed.
        """
        failure, result = None, None
        try:
            result = action()
        except StoreError as error:
            if self.count == 1:
                raise
            failure = error
        if failed := self.highest(self.rank + 1 if failure else 0):
            raise failure or StoreError(f"rank {failed - 1} could not write its part")
        return result  # type: ignore[return-value]  # the action's own

    def require_equal(self, facts: Mapping[str, Any]) -> None:
        """Check that all ranks have equal facts: ranks of different runs would wait for each other for ever.

        Raises:
            InputError: a fact differs; the message lists each rank's value.
        """
        if self.count == 1:
            return
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, dict(facts))
        for name in sorted(set().union(*gathered)):
            values = [of_rank.get(name) for of_rank in gathered]
            if any(value != values[0] for value in values):
                listed = ", ".join(f"rank {rank}: {value!r}" for rank, value in enumerate(values))
                raise InputError(f"the ranks disagree about {name} ({listed}); start all of them with the same command")


ALONE = Ranks()
"""A single process."""


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The ranks of this run, from the environment variables of torchrun, connected for the length of a block.

    Raises:
        InputError: there is no GPU for this rank.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    if device == "cuda":
        torch.cuda.set_device(_gpu_of(int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def _gpu_of(local_rank: int, visible: int) -> int:
    """The GPU index of a rank: its local rank, or 0 if it sees one GPU only, as with Slurm's gpus-per-task."""
    if visible == 1:
        return 0
    if local_rank >= visible:
        raise InputError(
            f"rank {local_rank} of this node has no GPU: torch sees {visible} GPUs; expected one for each rank"
        )
    return local_rank
