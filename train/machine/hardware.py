"""The device and the precision of a run, and the settings of torch on which results depend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from loopverify.errors import InputError
from train.specification import Precision, precision_of

__all__ = ["autocast", "dtype_of", "pinned", "use_device", "use_precision"]

# Torch's own choice among all of them.
_ATTENTION = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
]


def use_device(name: str) -> tuple[str, str]:
    """The kind of device to run on and the reason; `name` is 'auto', 'cpu' or 'cuda'.

    Raises:
        InputError: 'cuda' is requested, and there is no CUDA device.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda", f"cuda: found {torch.cuda.get_device_name()}"
        return "cpu", "cpu: torch sees no CUDA device"
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "device is 'cuda', but torch sees no CUDA device; expected 'cpu', or 'auto' for the available device"
        )
    return name, f"{name}: as requested"


def use_precision(name: str, device: str) -> tuple[Precision | None, str]:
    """The precision to run in (None: the device's own) and the reason; `name` is 'auto', 'float32' or 'bfloat16'."""
    if name != "auto":
        chosen: Precision = "bfloat16" if name == "bfloat16" else "float32"
        return (None if chosen == precision_of(device, None) else chosen), f"{chosen}: as requested"
    if device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "float32", f"float32: {torch.cuda.get_device_name()} has no bfloat16 arithmetic"
    return None, "bfloat16 autocast, as in the paper (table 9)" if device == "cuda" else "float32: a CPU gains nothing"


def dtype_of(device: str, precision: Precision | None) -> str:
    """As `precision_of`, in words for the facts of a run."""
    return "bfloat16 autocast" if precision_of(device, precision) == "bfloat16" else "float32"


@contextmanager
def pinned(threads: int | None) -> Iterator[None]:
    """Fixed torch settings, on which results depend, for the length of a block, regardless of the caller's settings.

    Denormal numbers are flushed to zero: gradients of confident exits underflow, and a step full of denormals takes
    twice as long on a CPU. Float32 products do not use TF32, even if TORCH_ALLOW_TF32_CUBLAS_OVERRIDE is set; new
    tensors are float32; autocast and the attention backends of the caller are replaced. `threads` determines the order
    of sums, regardless of OMP_NUM_THREADS. None leaves it to the machine, as is the instruction set of its processor:
    both affect rounding, are not part of a run's key, and are recorded in its facts.

    Raises:
        InputError: torch's default device is not the CPU, so that initialization would draw other random numbers.
    """
    if torch.get_default_device().type != "cpu":
        raise InputError(
            f"torch's default device is {torch.get_default_device()}; expected cpu: name devices explicitly"
        )
    before = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.get_default_dtype()
    _set(before[0] if threads is None else threads, "highest", torch.float32)
    torch.set_flush_denormal(True)
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), sdpa_kernel(_ATTENTION):
            yield
    finally:
        torch.set_flush_denormal(False)
        _set(*before)


def _set(threads: int, matmul_precision: str, dtype: torch.dtype) -> None:
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul_precision)
    torch.set_default_dtype(dtype)


def autocast(device: torch.device, precision: Precision | None) -> AbstractContextManager[Any]:
    """Context of forward passes in the precision of a run."""
    lower = precision_of(device.type, precision) == "bfloat16"
    return torch.autocast(device.type, dtype=torch.bfloat16) if lower else nullcontext()
