"""Execution: how the steps of a run are computed. It changes a result by rounding, and by what dropout draws."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from loopverify.errors import InputError

__all__ = ["ORDINARY", "Execution", "Parallel", "Precision"]

Parallel = Literal["ddp", "fsdp"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How the steps of one run are computed; the default is one process, the batch at once, nothing compiled."""

    ranks: int = 1
    """Processes that share every batch."""
    parallel: Parallel | None = None
    """How several processes hold the model: each a copy (`ddp`) or each a shard of every layer (`fsdp`)."""
    micro_batch: int | None = None
    """Windows a rank computes at once, gradients being summed up to its share of the batch; None: all, or on a GPU as
    many as fit."""
    compiled: bool = False
    """Whether torch.compile compiles the block, or under `fsdp` each sublayer of it."""
    precision: Precision | None = None
    """Autocast, if not the device's own: bfloat16 on CUDA, float32 on a CPU."""

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise InputError(f"ranks is {self.ranks}; expected an integer >= 1")
        if (self.ranks > 1) != (self.parallel is not None):
            raise InputError(f"{self.ranks} ranks with parallel={self.parallel}; expected ddp or fsdp for 2 or more")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise InputError(f"micro-batch is {self.micro_batch}; expected an integer >= 1")

    def determinants(self) -> dict[str, Any]:
        """What differs from the default, as JSON: rounding is part of a run's key, and old keys stay as they are."""
        default = asdict(ORDINARY)
        return {name: value for name, value in asdict(self).items() if value != default[name]}


ORDINARY = Execution()
"""One process, the whole batch at once, nothing compiled, the device's own precision."""
