"""Count and record calls of modules without a hook on the model itself.

The hooks are torch's global ones. They see every module that is called, also those that a `Looped` holds in closures,
and nothing is registered on the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["Call", "counted", "recorded"]


@contextmanager
def counted() -> Iterator[Counter[nn.Module]]:
    """The number of calls of every `nn.Module` inside the with block."""
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
def recorded(which: Callable[[nn.Module], bool] = lambda module: True) -> Iterator[list[Call]]:
    """The calls inside the with block, in order, of modules that map their only argument, a floating tensor, to a
    tensor of the same shape. Only modules for which `which` returns True are recorded; tensors are detached."""
    calls: list[Call] = []

    def record(module: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any], result: Any) -> None:
        given = [*arguments, *keywords.values()]
        if len(given) == 1 and _keeps_shape(given[0], result) and which(module):
            calls.append(Call(module, given[0].detach(), result.detach()))

    handle = register_module_forward_hook(record, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def _keeps_shape(given: object, result: object) -> bool:
    if not (isinstance(given, Tensor) and isinstance(result, Tensor)):
        return False
    return given.is_floating_point() and given.ndim > 0 and given.shape == result.shape and 0 not in given.shape
