"""Execution: how the steps of a run are computed. It changes a result by rounding, and by the draws of dropout."""

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
    """How the steps of one run are computed; by default in one process, a whole batch at once, nothing compiled."""

    ranks: int = 1
    """Number of processes that share every batch."""
    parallel: Parallel | None = None
    """How several processes hold the model: a copy each (`ddp`) or a shard of every layer each (`fsdp`)."""
    micro_batch: int | None = None
    """Windows per forward and backward pass on a rank; gradients accumulate over its share of the batch. None: the
    whole share, or on a GPU as many windows as fit."""
    compiled: bool = False
    """Whether torch.compile compiles the block, or under `fsdp` each of its sublayers."""
    precision: Precision | None = None
    """Autocast precision; None: the device's default, bfloat16 on CUDA and float32 on a CPU."""

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise InputError(f"ranks is {self.ranks}; expected an integer >= 1")
        if (self.ranks > 1) != (self.parallel is not None):
            raise InputError(f"{self.ranks} ranks with parallel={self.parallel}; expected ddp or fsdp for 2 or more")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise InputError(f"micro-batch is {self.micro_batch}; expected an integer >= 1")

    def determinants(self, device: str, batch: int) -> dict[str, Any]:
        """The part of a run's key that the execution determines, as JSON, on a kind of device with `batch` windows.

        Rounding is part of a result, so executions that round alike must give equal keys: a micro-batch that holds all
        windows of a rank equals None, and naming the device's default precision equals not naming one.
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
"""One process, the whole batch at once, nothing compiled, the device's default precision."""

# Variables by the executions that they change, and the value that changes nothing.
_ENVIRONMENT = {
    "cpu": {"DNNL_DEFAULT_FPMATH_MODE": "STRICT", "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT"},
    "cuda": {"NVIDIA_TF32_OVERRIDE": "0"},
    "compiled": {"TORCHDYNAMO_DISABLE": "0", "TORCH_COMPILE_DISABLE": "0"},
}


def precision_of(device: str, precision: Precision | None) -> Precision:
    """The precision of a run on a kind of device; the device's default if `precision` is None."""
    return precision or ("bfloat16" if device == "cuda" else "float32")


def environment(device: str, *, compiled: bool) -> dict[str, str]:
    """The environment variables that are set and change how a run is computed: its precision, or what is compiled.

    They are read below torch, which can neither show nor undo their effect. Variables that select instruction sets or
    kernels of the same precision (ATEN_CPU_CAPABILITY, MKL_CBWR, ...) are left out: they have the effect of another
    processor, which is no part of the key either.
    """
    read = _ENVIRONMENT[device] | (_ENVIRONMENT["compiled"] if compiled else {})
    return {name: value for name, idle in read.items() if (value := os.environ.get(name, idle)) not in ("", idle)}
