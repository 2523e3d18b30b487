"""Cross-entropies of many exits that never hold more than one chunk of logits.

Why: the logits of K exits are K * N * V numbers, by far the largest array of a training step, and autograd keeps them,
with their log-softmax, until the backward pass. But the gradient of a cross-entropy at its logits is known as soon as
they are: p − onehot(target). So each chunk of tokens is read, its loss and its gradients are computed at once, and its
logits are discarded (as Liger Kernel and cut-cross-entropy do for one exit; arXiv:2410.10989, arXiv:2411.09009).

How, for each exit and chunk:
1. cut the states of the chunk off the graph (`Cut`);
2. read them, up to the head where it is linear (`head_input`);
3. compute loss and gradient at the head's input by hand (`HeadLoss`), or with autograd for any other readout;
4. backpropagate through the rest of the readout to the cut, and add to one gradient per state and per parameter.
At the end the sum of all losses is attached to these tensors and their gradients (`Gradients.attach`), from where the
usual backward pass continues through the loops.

The gradients belong to this weighted sum; if the caller then scales the loss, so are they. What is not supported: a
second derivative, and a readout that also reads other tensors with a graph. Both raise an error.

Shapes: B batch, T tokens, N = B * T, D channels, V vocabulary, K loops.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from loopverify.arguments import check_count
from loopverify.errors import InputError
from loopverify.looped import Looped, Trace
from loopverify.objectives.eager_gradients import Cut, Gradients
from loopverify.objectives.head_input import head_input
from loopverify.objectives.head_loss import HeadLoss

__all__ = ["check_chunk_tokens", "weighted_sum"]


def weighted_sum(trace: Trace, targets: Tensor, weights: Mapping[int, Tensor], chunk_tokens: int) -> Tensor:
    """Σ_k Σ_t w_kt CE_kt, a scalar, in chunks of `chunk_tokens` tokens. Differentiable once, also in the weights.

    The readout is called on chunks (1, n, D) of a state, which it must accept (see check `readout_chunks`). It is
    called on the whole state if it reads other tokens ('contextual_readout' is declared) or may update statistics at
    each call (a module in training mode that has buffers).

    Args:
        targets: (B, T) int64 in 0..V-1.
        weights: exit (1..K) -> (B, T), the weight of each token's cross-entropy (nats); zero ignores a token.

    Raises:
        InputError: chunk_tokens is not an integer >= 1, or a readout does not accept chunks or also depends on a
            tensor computed from another state.
    """
    check_chunk_tokens(chunk_tokens)
    # A graph break: torch.compile cannot trace autograd calls and hooks of the forward pass.
    compute = torch.compiler.disable(_compute) if torch.compiler.is_compiling() else _compute  # type: ignore[no-untyped-call]
    total: Tensor = compute(trace, targets, weights, chunk_tokens)
    return total


def check_chunk_tokens(chunk_tokens: int | None) -> None:
    """Raise InputError unless `chunk_tokens` is an integer >= 1, or None."""
    if chunk_tokens is not None:
        check_count("chunk_tokens", chunk_tokens, "an integer >= 1, or None for the plain form")


def _compute(trace: Trace, targets: Tensor, weights: Mapping[int, Tensor], chunk_tokens: int) -> Tensor:
    exits = _ChunkedExits(trace, chunk_tokens)
    with torch.no_grad():
        total = torch.stack([exits.loss(loop, targets, weight) for loop, weight in weights.items()]).sum()
    return total if exits.gradients is None else exits.gradients.attach(total)


class _ChunkedExits:
    """Weighted cross-entropies of the exits of one trace, and the sum of their gradients."""

    def __init__(self, trace: Trace, chunk_tokens: int) -> None:
        self.gradients = Gradients() if trace.grad and torch.is_grad_enabled() else None
        self._trace, self._chunk_tokens = trace, chunk_tokens
        self._whole = "contextual_readout" in trace.model.declares or _keeps_statistics(trace.model)
        self._head_loss = HeadLoss(chunk_tokens)

    def loss(self, loop: int, targets: Tensor, weight: Tensor) -> Tensor:
        """Σ_t w_t CE_t of one exit; targets and weight (B, T). Its gradients are added to `gradients`."""
        state = self._trace.states[loop]
        n = targets.numel() if self._whole else self._chunk_tokens
        chunks = [state] if self._whole else [part[None] for part in torch.split(state.detach().flatten(0, 1), n)]
        # Allocated before any chunk: then the temporary arrays of every chunk can reuse the same memory behind it.
        at_state = None
        if self.gradients is not None and state.requires_grad:
            at_state = self.gradients.sum_for(state).flatten(0, 1)
        losses, begin = [], 0
        for chunk, *of_chunk in zip(
            chunks, torch.split(targets.flatten(), n), torch.split(weight.detach().flatten(), n), strict=True
        ):
            of_tokens, gradient = self._chunk(loop, chunk, *of_chunk)
            losses.append(of_tokens)
            if at_state is not None and gradient is not None:
                at_state[begin : begin + len(of_tokens)].add_(gradient.flatten(0, 1))
            begin += len(of_tokens)
        by_token = torch.cat(losses).view_as(weight)
        if self.gradients is not None and weight.requires_grad:
            self.gradients.sum_for(weight).add_(by_token)  # the derivative of Σ w CE by w is CE
        return (by_token * weight).sum()

    def _chunk(self, loop: int, state: Tensor, targets: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """Cross-entropies (n,) of a chunk of states, and the gradient of their weighted sum at it, of its shape."""
        cut = Cut(state)
        head = head_input(self._trace.model, lambda: self._read(loop, cut.leaf))
        if head is not None:
            losses, gradient = self._head_loss(head, targets, weight, self.gradients)
            return losses, None if gradient is None else self._backpropagated(cut, head.hidden, gradient)
        logits = self._read(loop, cut.leaf)
        if logits.shape[:-1] != state.shape[:-1]:
            raise InputError(
                f"the readout returned logits {tuple(logits.shape)} for a chunk of states {tuple(state.shape)}; "
                "expected (1, n, V), token by token. Declare 'contextual_readout', or use the plain form, "
                "chunk_tokens=None"
            )
        with torch.set_grad_enabled(self.gradients is not None):
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
            losses = F.cross_entropy(wide, targets, reduction="none")
            total = (losses * weight).sum()
        gradient = None if self.gradients is None else self._backpropagated(cut, total, torch.ones_like(total))
        return losses.detach(), gradient

    def _read(self, loop: int, state: Tensor) -> Tensor:
        device, trace = state.device.type, self._trace
        # Autocast caches its casts of weights. A cast made before the cut has a graph older than the cut, and `Cut`
        # would take it for another input of the readout; without the cache, each chunk casts again.
        uncached = torch.autocast(
            device,
            enabled=torch.is_autocast_enabled(device),
            dtype=torch.get_autocast_dtype(device),
            cache_enabled=False,
        )
        with torch.set_grad_enabled(self.gradients is not None), uncached:
            return trace.model.readout(state, trace.context, loop, trace.loops)

    def _backpropagated(self, cut: Cut, result: Tensor, gradient: Tensor) -> Tensor:
        """The gradient at the cut state, given `gradient` at `result`; gradients of parameters are added up."""
        assert self.gradients is not None
        if result is cut.leaf:  # the head reads the state itself
            return gradient
        leaves = cut.leaves(result)
        of_state, *of_leaves = torch.autograd.grad(result, [cut.leaf, *leaves], gradient, allow_unused=True)
        self.gradients.add(leaves, of_leaves)
        return torch.zeros_like(cut.leaf) if of_state is None else of_state


def _keeps_statistics(model: Looped) -> bool:
    """Whether a readout might update running statistics: a module in training mode has a buffer."""
    modules = {module for root in model.modules() for module in root.modules()}
    return any(module.training and next(module.buffers(recurse=False), None) is not None for module in modules)
