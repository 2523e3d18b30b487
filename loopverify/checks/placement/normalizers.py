"""Recognize norms by their function, not by name or class, and replay their calls.

Looped models come with norms of their own classes, and with modules named "norm" that do not normalize. What a norm is
for this package is a property of its function: it ignores the scale of its input, up to an epsilon, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from loopverify.checks.calls import Call

__all__ = ["could_normalize", "normalizes", "relative_difference", "replayed"]

TORCH_NORMS = (nn.LayerNorm, nn.RMSNorm)
DOUBLING = 0.1
"""A norm's output changes by less than this, relative, if its input doubles. This leaves room for an epsilon of up to
0.3 times the mean square; a linear module changes by 1."""
NEAR_LIMIT = 0.2
"""The output differs by less than this from that at a large scale: such an epsilon reduces it by 0.14. This excludes a
softmax, which is nearly constant for small inputs and for large ones, but not the same."""
LARGE_SCALE = 1e-3
"""The outputs at rms 1e3 and 1e4 differ by less than this: there, any epsilon is negligible. (In float16 both are
smaller if the largest channel would overflow.)"""


def could_normalize(module: nn.Module) -> bool:
    """Whether a module has the parameters of a norm: no children, at most a gain and a bias."""
    own = list(module.parameters(recurse=False))
    return not list(module.children()) and len(own) <= 2 and all(parameter.ndim <= 1 for parameter in own)


@contextmanager
def replayed(calls: Sequence[Call]) -> Iterator[None]:
    """Inside the with block, the modules of `calls` ignore their input and return their recorded results in order."""
    results: dict[nn.Module, list[Tensor]] = {}
    for call in reversed(calls):
        results.setdefault(call.module, []).append(call.result)

    def replay(module: nn.Module, arguments: Any, result: Any) -> Any:
        remaining = results.get(module)
        return remaining.pop() if remaining else None  # None: the module's own result stays

    handle = register_module_forward_hook(replay)
    try:
        yield
    finally:
        handle.remove()


def normalizes(module: nn.Module, given: Tensor) -> bool:
    """Whether a module is a norm: one of torch's, or one whose output ignores the scale of its input but not the rest.

    `given` is an input (..., D) from a recorded call; the module is called on multiples of it. A constant module would
    ignore scale as well, so the output must change when the channels are reversed.
    """
    if isinstance(module, TORCH_NORMS):
        return True
    wide = given if given.dtype == torch.float64 else given.float()
    size = wide.square().mean(-1, keepdim=True).sqrt()
    if not bool((size > 0).any()):
        return False
    unit = (wide / size.clamp_min(torch.finfo(wide.dtype).tiny)).to(given.dtype)
    # Half the largest finite number leaves room for the gain; only float16 is so narrow that this is below 1e4.
    top = min(1e4, torch.finfo(given.dtype).max / (2 * float(unit.abs().max())))
    try:
        with torch.no_grad():
            here, doubled, low, high, other = (
                module(x) for x in (given, 2 * given, top / 10 * unit, top * unit, given.flip(-1))
            )
    except (RuntimeError, TypeError, ValueError):
        return False  # it does not accept every tensor of this shape
    rounding = max(LARGE_SCALE, 4 * torch.finfo(given.dtype).eps)
    ignores_scale = (
        relative_difference(doubled, here) < DOUBLING
        and relative_difference(here, high) < NEAR_LIMIT
        and relative_difference(high, low) < rounding
    )
    return ignores_scale and relative_difference(other, here) > DOUBLING


def relative_difference(a: Tensor, b: Tensor) -> float:
    """rms(a - b) / rms(b); 0 if both are zero, NaN if a value is not finite."""
    change, size = (float(x.detach().double().square().mean().sqrt()) for x in (a - b, b))
    return 0.0 if change == 0 else change / size if size > 0 else float("inf")
