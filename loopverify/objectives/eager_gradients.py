"""Gradients that are computed together with a value, in the forward pass, and returned when autograd asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopverify.errors import InputError, LoopverifyError

__all__ = ["Cut", "Gradients"]


class Gradients:
    """Accumulated gradients of one scalar: one sum for each tensor that it depends on."""

    def __init__(self) -> None:
        # By id, since tensors compare elementwise; the tensor is kept with its sum so that its id stays taken.
        self._sums: dict[int, tuple[Tensor, Tensor]] = {}

    def sum_for(self, tensor: Tensor) -> Tensor:
        """The sum for `tensor`, to be added to in place: zeros of its shape at first, in float32 or wider."""
        if id(tensor) not in self._sums:
            wide = torch.promote_types(tensor.dtype, torch.float32)
            self._sums[id(tensor)] = tensor, torch.zeros(tensor.shape, dtype=wide, device=tensor.device)
        return self._sums[id(tensor)][1]

    def add(self, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Add what `torch.autograd.grad` returned; None adds nothing."""
        for tensor, gradient in zip(tensors, gradients, strict=True):
            if gradient is not None:
                self.sum_for(tensor).add_(gradient)

    def attach(self, value: Tensor) -> Tensor:
        """`value`, a scalar, as a function of the tensors whose gradients these are. Empties the sums."""
        if not self._sums:
            return value
        tensors, gradients = zip(*self._sums.values(), strict=True)
        self._sums.clear()
        attached: Tensor = _Attached.apply(value, list(gradients), *tensors)  # type: ignore[no-untyped-call]
        return attached


class _Attached(torch.autograd.Function):
    """(value, gradients, *tensors) -> value, whose backward returns the given gradients times the incoming one.

    This is exact, since the derivative of a scalar is linear in the incoming gradient. Each gradient is kept once, and
    scaled in place: copies would cost what chunking saves. So there is one backward pass, and no second derivative.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *tensors: Tensor) -> Tensor:
        ctx.gradients, ctx.dtypes = gradients, [tensor.dtype for tensor in tensors]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise LoopverifyError(
                "create_graph=True requires the second derivative of a chunked loss; its gradients are computed in the "
                "forward pass and have none. Use the plain form, chunk_tokens=None"
            )
        if not ctx.gradients:
            raise LoopverifyError(
                "a second backward pass through one chunked loss, which keeps its gradients only once. Compute the "
                "loss again, or use the plain form, chunk_tokens=None"
            )
        # Autograd takes over a tensor that nobody else refers to, and copies it otherwise.
        gradients, ctx.gradients = ctx.gradients, []
        scaled = (sum_.mul_(incoming[0]).to(dtype) for sum_, dtype in zip(gradients, ctx.dtypes, strict=True))
        return (None, None, *scaled)


class Cut:
    """A tensor detached from its graph, so that a function of it can be differentiated at once and its graph freed.

    The gradient at the cut tensor is complete; it reaches earlier loops later, through `Gradients.attach`. But if the
    function also reads another tensor with a graph (a state of an earlier loop kept in the context, say), that graph
    is not cut: backpropagating through it now would free it before the backward pass of the loops, and stopping there
    would lose its gradient silently. `leaves` therefore rejects such tensors. They are recognized by age: autograd
    numbers its nodes in order of creation, so a node older than the cut was not created by the function.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.leaf = tensor.detach().requires_grad_()
        with torch.enable_grad():  # a node made now, only for its number
            self._age = _age(self.leaf.view_as(self.leaf).grad_fn)

    def leaves(self, result: Tensor) -> list[Tensor]:
        """The leaves (parameters) other than the cut tensor on which `result`, a function of it, depends.

        Raises:
            InputError: `result` also depends on a tensor computed before the cut, which would get no gradient.
        """
        pending, seen = [result.grad_fn], {result.grad_fn}
        leaves: list[Tensor] = []
        while pending:
            node = pending.pop()
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                leaves.append(leaf)
            elif node is not None and _age(node) < self._age:
                raise InputError(
                    f"the readout depends on the state and on another tensor computed before ({node.name()}), to which "
                    "a chunked loss returns no gradient. Detach it, or use the plain form, chunk_tokens=None"
                )
            for parent, _ in () if node is None else node.next_functions:
                if parent is not None and parent not in seen:
                    seen.add(parent)
                    pending.append(parent)
        return [leaf for leaf in leaves if leaf is not self.leaf]


def _age(node: Any) -> int:
    """The number of a node of the autograd graph: later nodes have larger numbers."""
    number: int = node._sequence_nr()
    return number
