"""The processes that train one run together, as torchrun or Slurm starts them: who they are, and what they agree on.

Decisions travel on the CPU (gloo), so that no queue of an accelerator is waited for; gradients by its own way (NCCL).
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
"""For as long may the first rank wait for another worker's run; torchrun ends the others when one dies."""


@dataclass(frozen=True)
class Ranks:
    """One of `count` processes that train a run together; alone it agrees with itself at no cost."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that reads and writes the store and reports."""
        return self.rank == 0

    def share(self, indices: Tensor) -> Tensor:
        """This rank's part of a batch (B,), as equal as can be.

        Raises:
            InputError: there are more ranks than windows.
        """
        if len(indices) < self.count:
            raise InputError(f"{self.count} ranks share a batch of {len(indices)} windows; expected a window each")
        return indices.tensor_split(self.count)[self.rank]

    def largest_share(self, batch: int) -> int:
        """The windows of the rank with most of them."""
        return math.ceil(batch / self.count)

    def highest(self, value: int) -> int:
        """The greatest of the ranks' values."""
        if self.count == 1:
            return value
        told = torch.tensor(value)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return int(told)

    def told(self, value: T) -> T:
        """The first rank's value (of plain Python types)."""
        if self.count == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box)
        told: T = box[0]
        return told

    def average_(self, tensor: Tensor) -> Tensor:
        """The mean over the ranks, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
            tensor /= self.count
        return tensor

    def together(self, action: Callable[[], T]) -> T:
        """What `action` returns here; where it fails on any rank, it fails on all.

        Raises:
            StoreError: this rank's, or one that says that another rank has failed.
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
        """Refuse ranks that are about to do different things: they would wait for each other for ever.

        Raises:
            InputError: naming the facts that differ, and each rank's value.
        """
        if self.count == 1:
            return
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, dict(facts))
        for name in sorted(set().union(*gathered)):
            values = [of_rank.get(name) for of_rank in gathered]
            if any(value != values[0] for value in values):
                told = ", ".join(f"rank {rank}: {value!r}" for rank, value in enumerate(values))
                raise InputError(f"the ranks disagree about {name} ({told}); start all of them with the same command")


ALONE = Ranks()
"""A process by itself."""


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The ranks of this run, by the environment variables of torchrun, connected for the length of a block.

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
    """The GPU of a rank: by its place on the node, or the only one it is given, as by Slurm's gpus-per-task."""
    if visible == 1:
        return 0
    if local_rank >= visible:
        raise InputError(
            f"rank {local_rank} of this node has no GPU: torch sees {visible} here; expected one for each rank"
        )
    return local_rank
