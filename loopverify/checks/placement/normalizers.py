"""Find norms by what they do, and replay their calls, without touching the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from loopverify.checks.calls import Call

__all__ = ["apart", "could_normalize", "normalizes", "replayed"]

KNOWN = (nn.LayerNorm, nn.RMSNorm)
AT_STATE = 0.1
"""A norm's output changes by less than this, relative, when its input doubles: an epsilon may weigh 0.3 of the mean
square, while a module that keeps scale changes by 1."""
AT_ONCE = 0.2
"""And it is within this of the output at a large scale: such an epsilon takes off 0.14. A softmax of small inputs is
far from one of large inputs."""
AT_LARGE = 1e-3
"""And between rms 1e3 and 1e4 by less than this, where no epsilon weighs anything."""


def could_normalize(module: nn.Module) -> bool:
    """Whether a module is small enough for a norm: no children, at most a gain and a bias."""
    own = list(module.parameters(recurse=False))
    return not list(module.children()) and len(own) <= 2 and all(parameter.ndim <= 1 for parameter in own)


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
