"""Find norms by what they do, watch their calls and replay them, without touching the model.

Hooks here are torch's global ones: they see every module that is called, whoever holds it, and nothing is registered
on the model itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

__all__ = ["Call", "apart", "normalizes", "replayed", "watched"]

KNOWN = (nn.LayerNorm, nn.RMSNorm)
AT_STATE = 0.1
"""A norm's output changes by less than this, relative, when its input doubles: an epsilon may weigh 0.3 of the mean
square, while a module that keeps scale changes by 1."""
AT_ONCE = 0.2
"""And it is within this of the output at a large scale: such an epsilon takes off 0.14. A softmax of small inputs is
far from one of large inputs."""
AT_LARGE = 1e-3
"""And between rms 1e3 and 1e4 by less than this, where no epsilon weighs anything."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module that could be a norm."""

    module: nn.Module
    given: Tensor
    result: Tensor


@contextmanager
def watched() -> Iterator[list[Call]]:
    """The calls inside the block, in order, of modules that could be norms: tensor in, tensor of that shape out."""
    calls: list[Call] = []

    def record(module: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any], result: Any) -> None:
        given = [*arguments, *keywords.values()]
        if len(given) == 1 and _preserved(given[0], result) and _has_few_parameters(module):
            calls.append(Call(module, given[0].detach(), result.detach()))

    handle = register_module_forward_hook(record, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


@contextmanager
def replayed(calls: Sequence[Call]) -> Iterator[None]:
    """Inside the block the modules of `calls` return what they returned then, call by call, whatever they are given."""
    results: dict[nn.Module, list[Tensor]] = {}
    for call in reversed(calls):
        results.setdefault(call.module, []).append(call.result)

    def replay(module: nn.Module, arguments: Any, result: Any) -> Any:
        kept = results.get(module)
        return kept.pop() if kept else None

    handle = register_module_forward_hook(replay)
    try:
        yield
    finally:
        handle.remove()


def normalizes(module: nn.Module, given: Tensor) -> bool:
    """Whether a module is a norm: one that torch knows, or one that ignores the scale of its input but not the rest.

    `given` is an input (..., D) that it met; the module is called on multiples of it.
    """
    if isinstance(module, KNOWN):
        return True
    wide = given if given.dtype == torch.float64 else given.float()
    size = wide.square().mean(-1, keepdim=True).sqrt()
    if not bool((size > 0).any()):
        return False
    unit = (wide / size.clamp_min(torch.finfo(wide.dtype).tiny)).to(given.dtype)
    try:
        with torch.no_grad():
            here, doubled, low, high, other = (
                module(x) for x in (given, 2 * given, 1e3 * unit, 1e4 * unit, given.flip(-1))
            )
    except (RuntimeError, TypeError, ValueError):
        return False  # it takes something else than any tensor of this shape
    rounding = max(AT_LARGE, 4 * torch.finfo(given.dtype).eps)
    ignores_scale = apart(doubled, here) < AT_STATE and apart(here, high) < AT_ONCE and apart(high, low) < rounding
    return ignores_scale and apart(other, here) > AT_STATE


def apart(a: Tensor, b: Tensor) -> float:
    """rms(a - b) / rms(b); 0 when both are zero, NaN when a value is not finite."""
    change, size = (float(x.detach().double().square().mean().sqrt()) for x in (a - b, b))
    return 0.0 if change == 0 else change / size if size > 0 else float("inf")


def _preserved(given: object, result: object) -> bool:
    if not (isinstance(given, Tensor) and isinstance(result, Tensor)):
        return False
    return given.is_floating_point() and given.ndim > 0 and given.shape == result.shape and 0 not in given.shape


def _has_few_parameters(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    return not list(module.children()) and len(own) <= 2 and all(parameter.ndim <= 1 for parameter in own)
