"""What named GPUs can do at best, by the data sheets of their makers: for estimates, and for the share that is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from loopverify.errors import unknown

__all__ = ["GPUS", "Gpu", "gpu", "recognized"]


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One model of GPU."""

    name: str
    flops: float
    """Dense matrix products in bfloat16, FLOP/s, without sparsity."""
    memory: float
    """Bytes."""


_TERA, _GIGA = 1e12, 1e9

GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        name: Gpu(name=name, flops=tera * _TERA, memory=giga * _GIGA)
        for name, tera, giga in (
            ("A100-40GB", 312, 40),
            ("A100-80GB", 312, 80),
            ("H100", 989, 80),
            ("H200", 989, 141),
            ("B200", 2250, 180),
            ("L40S", 362, 48),
            ("RTX-4090", 165, 24),
        )
    }
)
"""By name. H100 and H200 as modules (SXM), not as cards; the RTX 4090 with float32 accumulation."""


def gpu(name: str) -> Gpu:
    """The GPU called `name`, in any case.

    Raises:
        InputError: no such GPU, with those there are.
    """
    by_folded = {known.casefold(): one for known, one in GPUS.items()}
    if name.casefold() not in by_folded:
        raise unknown("GPU", name, GPUS)
    return by_folded[name.casefold()]


def recognized(device: str) -> Gpu | None:
    """The GPU behind a name such as 'NVIDIA A100-SXM4-80GB', as `torch.cuda.get_device_name` gives it; None: no guess.

    Cards (PCIe), slices (MIG) and relatives (H100 NVL) of a known module are slower, so they are not it.
    """
    words = set(re.split(r"[\s-]+", device.casefold()))
    if words & {"pcie", "mig", "nvl", "laptop", "d"}:
        return None
    found = [one for name, one in GPUS.items() if words >= set(name.casefold().split("-"))]
    return found[0] if len(found) == 1 else None
