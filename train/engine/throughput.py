"""Throughput of a run in training: tokens per second and model FLOPs utilization."""

from __future__ import annotations

import time

import torch

from train.machine.distributed import Ranks
from train.specification import RunSpec
from train.specification.gpus import Gpu, recognized
from train.specification.plan import forward_flops

__all__ = ["Throughput"]


class Throughput:
    """Counts the tokens of all ranks since its creation."""

    def __init__(self, spec: RunSpec, vocab_size: int, ranks: Ranks) -> None:
        self._flops = 3 * forward_flops(
            spec, vocab_size
        )  # per token; the backward pass takes twice as many as the forward pass
        self._gpu = _own_gpu(spec)
        self._ranks = ranks
        self._started, self._tokens = time.perf_counter(), 0

    def add(self, tokens: int) -> None:
        """Count the tokens of a step."""
        self._tokens += tokens

    def facts(self) -> dict[str, float | None]:
        """'tokens_per_s' over all ranks since the start, and 'mfu', model FLOPs utilization (Chowdhery et al. 2022,
        arXiv:2204.02311, appendix B): relative to the bfloat16 peak of all GPUs, without recomputed operations; None if
        the peak is unknown."""
        per_s = self._tokens / (time.perf_counter() - self._started)
        peak = None if self._gpu is None else self._gpu.flops * self._ranks.count
        return {"tokens_per_s": per_s, "mfu": None if peak is None else per_s * self._flops / peak}


def _own_gpu(spec: RunSpec) -> Gpu | None:
    """The GPU in use, if it is known and the run computes in bfloat16, the precision of `Gpu.flops`."""
    if spec.device != "cuda" or spec.execution.precision == "float32":
        return None
    return recognized(torch.cuda.get_device_name())
