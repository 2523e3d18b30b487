"""What a run is computed on: the device, the precision, and what the device could do at most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from loopverify.errors import InputError
from train.spec import Precision

__all__ = ["autocast", "dtype_of", "flushed_denormals", "precision_of", "use_device", "use_precision"]


def use_device(name: str) -> tuple[str, str]:
    """The kind of device to run on and the reason; `name` is 'auto', 'cpu' or 'cuda'.

    Raises:
        InputError: 'cuda' where there is none.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda", f"cuda: found {torch.cuda.get_device_name()}"
        return "cpu", "cpu: torch sees no CUDA device"
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda', but torch sees no CUDA device; expected 'cpu', or 'auto' for what there is")
    return name, f"{name}: as asked"


def use_precision(name: str, device: str) -> tuple[Precision | None, str]:
    """The precision to run in (None: the device's own) and the reason; `name` is 'auto', 'float32' or 'bfloat16'."""
    if name != "auto":
        chosen: Precision = "bfloat16" if name == "bfloat16" else "float32"
        return (None if chosen == precision_of(device, None) else chosen), f"{chosen}: as asked"
    if device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "float32", f"float32: {torch.cuda.get_device_name()} has no bfloat16 arithmetic"
    return None, "bfloat16 autocast, as in the paper (table 9)" if device == "cuda" else "float32: a CPU gains nothing"


def precision_of(device: str, precision: Precision | None) -> Precision:
    """What a run on a kind of device computes in; the device's own where `precision` is None."""
    return precision or ("bfloat16" if device == "cuda" else "float32")


def dtype_of(device: str, precision: Precision | None) -> str:
    """As `precision_of`, for people."""
    return "bfloat16 autocast" if precision_of(device, precision) == "bfloat16" else "float32"


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Gradients of confident exits underflow; a CPU takes twice as long for a step full of denormal numbers."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def autocast(device: torch.device, precision: Precision | None) -> AbstractContextManager[Any]:
    """The precision of a run's forwards."""
    lower = precision_of(device.type, precision) == "bfloat16"
    return torch.autocast(device.type, dtype=torch.bfloat16) if lower else nullcontext()
