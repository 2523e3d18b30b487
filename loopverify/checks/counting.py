"""Watch the calls of modules, whoever holds them, without a hook on the model itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["Call", "counted", "recorded"]


@contextmanager
def counted() -> Iterator[Counter[nn.Module]]:
    """The calls of every `nn.Module` inside the block."""
    calls: Counter[nn.Module] = Counter()

    def count(module: nn.Module, arguments: Any) -> None:
        calls[module] += 1

    handle = register_module_forward_pre_hook(count)
    try:
        yield calls
    finally:
        handle.remove()


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module that maps one tensor to one of the same shape."""

    module: nn.Module
    given: Tensor
    result: Tensor


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """The shape-preserving calls of one tensor inside the block, in order."""
    calls: list[Call] = []

    def record(module: nn.Module, arguments: Any, result: Any) -> None:
        match arguments:
            case (Tensor() as given,) if isinstance(result, Tensor) and result.shape == given.shape:
                calls.append(Call(module, given, result))

    handle = register_module_forward_hook(record)
    try:
        yield calls
    finally:
        handle.remove()
