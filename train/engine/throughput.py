"""Throughput of a run in training: tokens a second, and the share of the hardware's peak that they make use of."""

from __future__ import annotations

import time

import torch

from train.machine.distributed import Ranks
from train.specification import RunSpec
from train.specification.gpus import Gpu, recognized
from train.specification.plan import forward_flops

__all__ = ["Throughput"]


class Throughput:
    """Counts the tokens of all ranks from its creation on."""

    def __init__(self, spec: RunSpec, vocab_size: int, ranks: Ranks) -> None:
        self._flops = 3 * forward_flops(spec, vocab_size)  # a token; a backward takes twice what its forward takes
        self._gpu = _own_gpu(spec)
        self._ranks = ranks
        self._started, self._tokens = time.perf_counter(), 0

    def add(self, tokens: int) -> None:
        """Count the tokens of a step."""
        self._tokens += tokens

    def facts(self) -> dict[str, float | None]:
        """'tokens_per_s' over all ranks since the start; 'mfu', model FLOPs utilization (Chowdhery et al. 2022,
        arXiv:2204.02311, appendix B): of the peak of all GPUs in bfloat16, without operations done twice; None where
        the peak is not known."""
        per_s = self._tokens / (time.perf_counter() - self._started)
        peak = None if self._gpu is None else self._gpu.flops * self._ranks.count
        return {"tokens_per_s": per_s, "mfu": None if peak is None else per_s * self._flops / peak}


def _own_gpu(spec: RunSpec) -> Gpu | None:
    """The GPU in use where its peak is that of the run's precision."""
    if spec.device != "cuda" or spec.execution.precision == "float32":
        return None
    return recognized(torch.cuda.get_device_name())
