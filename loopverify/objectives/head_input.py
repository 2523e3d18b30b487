"""How a readout ends: what it shows to its head, where the head is a linear map onto the vocabulary.

Shapes: B batch, T tokens, D channels, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from loopverify.looped import Looped

__all__ = ["HeadInput", "head_input"]


@dataclass(frozen=True, eq=False)
class HeadInput:
    """logits = shown @ weight.T + bias, not computed yet."""

    shown: Tensor
    """(B, T, D)."""
    weight: Tensor
    """(V, D)."""
    bias: Tensor | None
    """(V,)."""


# Models whose readout was found to end otherwise; asking again would run what precedes the end once more.
_OTHERWISE: weakref.WeakSet[Looped] = weakref.WeakSet()


def head_input(model: Looped, read: Callable[[], Tensor]) -> HeadInput | None:
    """Run a readout up to its head; None when it does not end in a linear map, which a model is asked only once.

    Args:
        model: whose readout it is.
        read: calls the readout of a state (B, T, D); its logits are never formed.
    """
    if model in _OTHERWISE:
        return None
    heads = _Heads(model.vocab_size)
    try:
        with heads:
            result = read()
    except _UsedError:
        result = None
    if result is not None and result is heads.placeholder:
        return heads.found
    _OTHERWISE.add(model)
    return None


class _UsedError(Exception):
    """What a linear map would have returned is used: it was not the last one."""


class _Heads(TorchFunctionMode):
    """Puts off linear maps onto the vocabulary (any, when its size is not known)."""

    def __init__(self, vocab_size: int | None) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.placeholder: Tensor | None = None
        self.found: HeadInput | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.placeholder is not None and any(part is self.placeholder for part in tree_leaves((args, kwargs))):
            raise _UsedError
        if func is F.linear and self._puts_off(*args, **kwargs):
            return self.placeholder
        return func(*args, **kwargs)

    def _puts_off(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:  # noqa: A002 - as F.linear
        # Weights of another type (sharded, quantized) have a product of their own.
        if type(weight) not in (Tensor, nn.Parameter) or self.vocab_size not in (None, weight.shape[0]):
            return False
        self.placeholder, self.found = input.new_empty(0), HeadInput(input, weight, bias)
        return True
