"""Execution: how the steps of a run are computed. It changes a result by rounding, and by what dropout draws."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Literal

from loopverify.errors import InputError

__all__ = ["ORDINARY", "Execution", "Parallel", "Precision", "environment", "precision_of"]

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

    def determinants(self, device: str, batch: int) -> dict[str, Any]:
        """What it comes to on a kind of device with batches of so many windows, as JSON for the key of a run.

        Rounding is part of a result. What rounds the same is the same: a micro-batch that holds all of a rank's windows
        is none, and the device's own precision is its own also where it is named.
        """
        splits = self.micro_batch is not None and self.micro_batch < math.ceil(batch / self.ranks)
        return {
            "ranks": self.ranks,
            "parallel": self.parallel,
            "micro_batch": self.micro_batch if splits else None,
            "compiled": self.compiled,
            "precision": precision_of(device, self.precision),
        }


ORDINARY = Execution()
"""One process, the whole batch at once, nothing compiled, the device's own precision."""

_ENVIRONMENT = ("DNNL_DEFAULT_FPMATH_MODE", "NVIDIA_TF32_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE")


def precision_of(device: str, precision: Precision | None) -> Precision:
    """What a run on a kind of device computes in; the device's own where `precision` is None."""
    return precision or ("bfloat16" if device == "cuda" else "float32")


def environment() -> dict[str, str]:
    """The variables of the environment that make libraries compute in another precision, where they are set.

    They are read below torch, so that it can neither show nor undo what they do. Those that choose among instruction
    sets or kernels of one precision (ATEN_CPU_CAPABILITY, MKL_CBWR, ...) do what another processor would: left out.
    """
    return {name: os.environ[name] for name in _ENVIRONMENT if os.environ.get(name)}
