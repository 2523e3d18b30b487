"""Gradients that are formed with a value, in the forward pass, and handed to autograd when it asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopverify.errors import InputError, LoopverifyError

__all__ = ["Cut", "Gradients"]


class Gradients:
    """Gradients under formation: one sum for each tensor that is to get one."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """The sum for `tensor`, to be added to in place: zeros of its shape at first, in float32 at least."""
        if id(tensor) not in self._sums:
            wide = torch.promote_types(tensor.dtype, torch.float32)
            self._sums[id(tensor)] = tensor, torch.zeros(tensor.shape, dtype=wide, device=tensor.device)
        return self._sums[id(tensor)][1]

    def add(self, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Add what an autograd call returned; None adds nothing."""
        for tensor, gradient in zip(tensors, gradients, strict=True):
            if gradient is not None:
                self.of(tensor).add_(gradient)

    def attach(self, value: Tensor) -> Tensor:
        """The scalar `value` as the function of all these tensors that has these gradients. Empties the sums."""
        if not self._sums:
            return value
        tensors, gradients = zip(*self._sums.values(), strict=True)
        self._sums.clear()
        attached: Tensor = _Attached.apply(value, list(gradients), *tensors)  # type: ignore[no-untyped-call]
        return attached


class _Attached(torch.autograd.Function):
    """(value, gradients, *tensors) -> value. Each gradient is kept once, and is scaled where it lies."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *tensors: Tensor) -> Tensor:
        ctx.gradients, ctx.dtypes = gradients, [tensor.dtype for tensor in tensors]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise LoopverifyError(
                "create_graph=True asks a chunked loss for a second derivative; its gradients are formed in the "
                "forward pass and have none. Use the plain form, chunk_tokens=None"
            )
        if not ctx.gradients:
            raise LoopverifyError(
                "a second backward pass through one chunked loss, which keeps its gradients only once. Compute the "
                "loss again, or use the plain form, chunk_tokens=None"
            )
        # Handed over and forgotten: a reference kept here would make autograd copy what it could keep.
        gradients, ctx.gradients = ctx.gradients, []
        scaled = (sum_.mul_(above[0]).to(dtype) for sum_, dtype in zip(gradients, ctx.dtypes, strict=True))
        return (None, None, *scaled)


class Cut:
    """A tensor cut off from the graph behind it, so that a function of it can be differentiated on the spot."""

    def __init__(self, tensor: Tensor) -> None:
        self.leaf = tensor.detach().requires_grad_()
        with torch.enable_grad():
            self._begun = _age(self.leaf.view_as(self.leaf).grad_fn)

    def leaves(self, result: Tensor) -> list[Tensor]:
        """The leaves (parameters) other than the cut tensor that went into `result`, a function of it.

        Raises:
            InputError: so did a tensor that has a graph from before the cut, where a gradient formed here ends.
        """
        pending, seen = [result.grad_fn], {result.grad_fn}
        leaves: list[Tensor] = []
        while pending:
            node = pending.pop()
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                leaves.append(leaf)
            elif node is not None and _age(node) < self._begun:
                raise InputError(
                    f"the readout reads, besides the state, a tensor that was computed before ({node.name()}); a "
                    "chunked loss can give it no gradient. Detach it, or use the plain form, chunk_tokens=None"
                )
            for parent, _ in () if node is None else node.next_functions:
                if parent is not None and parent not in seen:
                    seen.add(parent)
                    pending.append(parent)
        return [leaf for leaf in leaves if leaf is not self.leaf]


def _age(node: Any) -> int:
    """Nodes of an autograd graph are numbered as they are made."""
    age: int = node._sequence_nr()
    return age
