"""Peak FLOP/s and memory of GPUs, from the data sheets of their makers: for estimates and for the MFU of a run."""

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
"""GPUs by name. H100 and H200 are the SXM modules, not PCIe cards; RTX-4090 is with float32 accumulation."""


def gpu(name: str) -> Gpu:
    """The GPU called `name`, in any case.

    Raises:
        InputError: no such GPU; the message lists the known ones.
    """
    found = {known.casefold(): one for known, one in GPUS.items()}.get(name.casefold())
    if found is None:
        raise unknown("GPU", name, GPUS)
    return found


def recognized(device: str) -> Gpu | None:
    """The GPU with a name such as 'NVIDIA A100-SXM4-80GB', from `torch.cuda.get_device_name`; None if not known.

    Cards (PCIe), slices (MIG) and variants (H100 NVL) of a known module are slower and therefore not recognized as it.
    """
    words = set(re.split(r"[\s-]+", device.casefold()))
    if words & {"pcie", "mig", "nvl", "laptop", "d"}:
        return None
    found = [one for name, one in GPUS.items() if words >= set(name.casefold().split("-"))]
    return found[0] if len(found) == 1 else None
