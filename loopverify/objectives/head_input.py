"""The input of a readout's head, where the head is a linear map onto the vocabulary.

With it, `head_loss` computes loss and gradients of the head in one reused buffer. Without, autograd must keep the
logits, their log-softmax and both gradients: several times the memory.

A readout is any callable, so its last operation cannot be looked up. It is found by running the readout once while
`F.linear` (which `nn.Linear` calls) returns an empty placeholder instead of the logits. If the readout returns this
very placeholder, the map was its last operation. If any operation reads the placeholder (a softcap, a temperature), the
map was not the last one, and the readout is run the usual way.

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
    """logits = hidden @ weight.T + bias, not computed yet."""

    hidden: Tensor
    """(B, T, D)."""
    weight: Tensor
    """(V, D)."""
    bias: Tensor | None
    """(V,)."""


# Models whose readout does not end in a linear map: trying again would run the readout twice per chunk.
_NO_LINEAR_HEAD: weakref.WeakSet[Looped] = weakref.WeakSet()


def head_input(model: Looped, read: Callable[[], Tensor]) -> HeadInput | None:
    """Run a readout up to its head; None if it does not end in a linear map (tried only once per model).

    Args:
        model: the model whose readout it is.
        read: calls the readout on a state (B, T, D). Its logits are never computed.
    """
    if model in _NO_LINEAR_HEAD:
        return None
    deferred = _DeferredHead(model.vocab_size)
    try:
        with deferred:
            result = read()
    except _PlaceholderReadError:
        result = None
    if result is not None and result is deferred.placeholder:
        return deferred.found
    _NO_LINEAR_HEAD.add(model)
    return None


class _PlaceholderReadError(Exception):
    """An operation reads the result of the deferred linear map: it was not the last one."""


class _DeferredHead(TorchFunctionMode):
    """Defers linear maps onto the vocabulary (all linear maps if its size is unknown)."""

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
            raise _PlaceholderReadError
        if func is F.linear and self._defers(*args, **kwargs):
            return self.placeholder
        return func(*args, **kwargs)

    def _defers(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:  # noqa: A002 - as F.linear
        # A weight of another type (sharded, quantized) has its own product, which torch.mm would not reproduce.
        if type(weight) not in (Tensor, nn.Parameter) or self.vocab_size not in (None, weight.shape[0]):
            return False
        self.placeholder, self.found = input.new_empty(0), HeadInput(input, weight, bias)
        return True
