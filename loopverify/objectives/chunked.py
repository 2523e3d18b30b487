"""Cross-entropies of many exits without ever holding more than one chunk of logits.

The gradient of a cross-entropy at its logits is known as soon as they are: p − onehot(target). So the gradients of
states and head are formed in the forward pass, chunk by chunk, and all exits add to one gradient of the head (as Liger
Kernel and cut-cross-entropy do for one exit; arXiv:2410.10989, arXiv:2411.09009).

Shapes: B batch, T tokens, N = B * T, D channels, V vocabulary, K loops.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Looped, Trace
from loopverify.objectives.eager_gradients import Cut, Gradients
from loopverify.objectives.head_input import head_input
from loopverify.objectives.head_loss import HeadLoss

__all__ = ["check_chunk_tokens", "weighted_sum"]


def weighted_sum(trace: Trace, targets: Tensor, weights: Mapping[int, Tensor], chunk_tokens: int) -> Tensor:
    """Σ_k Σ_t w_kt CE_kt, a scalar, in chunks of `chunk_tokens` tokens. Differentiable once, also in the weights.

    The readout is called on chunks (1, n, D) of a state, which it must be able to take (the check `readout_chunks`);
    but on all of it where it looks at other tokens ('contextual_readout' is declared), or may keep statistics of its
    calls (a model in training that has buffers). Where it ends in a linear map (`F.linear`, `nn.Linear`), that is done
    by hand; what precedes it, or a readout that ends otherwise, is differentiated by autograd on the spot.

    Args:
        targets: (B, T) int64 in 0..V-1.
        weights: exit (1..K) -> (B, T), the weight of each token's cross-entropy (nats); zero leaves a token out.

    Raises:
        InputError: chunk_tokens below 1, a readout that does not take chunks, or one that also reads what was computed
            from another state.
    """
    check_chunk_tokens(chunk_tokens)
    # A graph break: what is done here by hand is not for a compiler of graphs.
    form = torch.compiler.disable(_form) if torch.compiler.is_compiling() else _form  # type: ignore[no-untyped-call]
    total: Tensor = form(trace, targets, weights, chunk_tokens)
    return total


def check_chunk_tokens(chunk_tokens: int | None) -> None:
    """Refuse a size of chunks that is none."""
    if chunk_tokens is not None and chunk_tokens < 1:
        raise InputError(f"chunk_tokens is {chunk_tokens!r}; expected an integer >= 1, or None for the plain form")


def _form(trace: Trace, targets: Tensor, weights: Mapping[int, Tensor], chunk_tokens: int) -> Tensor:
    forming = _Forming(trace, chunk_tokens)
    with torch.no_grad():
        total = torch.stack([forming.exit(loop, targets, weight) for loop, weight in weights.items()]).sum()
    return total if forming.gradients is None else forming.gradients.attach(total)


class _Forming:
    """A weighted sum of cross-entropies and its gradients, exit by exit and chunk by chunk."""

    def __init__(self, trace: Trace, chunk_tokens: int) -> None:
        self.gradients = Gradients() if trace.grad and torch.is_grad_enabled() else None
        self._trace, self._chunk_tokens = trace, chunk_tokens
        self._whole = "contextual_readout" in trace.model.declares or _keeps_statistics(trace.model)
        self._head_loss = HeadLoss(chunk_tokens)

    def exit(self, loop: int, targets: Tensor, weight: Tensor) -> Tensor:
        """Σ_t w_t CE_t of one exit; targets and weight (B, T)."""
        state = self._trace.states[loop]
        n = targets.numel() if self._whole else self._chunk_tokens
        chunks = [state] if self._whole else [part[None] for part in torch.split(state.detach().flatten(0, 1), n)]
        # What stays is laid down before what comes and goes, which then finds the same place chunk after chunk.
        made = None if self.gradients is None or not state.requires_grad else self.gradients.of(state).flatten(0, 1)
        losses, begin = [], 0
        for chunk, *of_chunk in zip(
            chunks, torch.split(targets.flatten(), n), torch.split(weight.detach().flatten(), n), strict=True
        ):
            of_tokens, gradient = self._chunk(loop, chunk, *of_chunk)
            losses.append(of_tokens)
            if made is not None and gradient is not None:
                made[begin : begin + len(of_tokens)].add_(gradient.flatten(0, 1))
            begin += len(of_tokens)
        by_token = torch.cat(losses).view_as(weight)
        if self.gradients is not None and weight.requires_grad:
            self.gradients.of(weight).add_(by_token)
        return (by_token * weight).sum()

    def _chunk(self, loop: int, state: Tensor, targets: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """Cross-entropies (n,) of a chunk of states, and the gradient of their weighted sum at it, of its shape."""
        cut = Cut(state)
        end = head_input(self._trace.model, lambda: self._read(loop, cut.leaf))
        if end is not None:
            losses, gradient = self._head_loss(end, targets, weight, self.gradients)
            return losses, None if gradient is None else self._pulled_back(cut, end.shown, gradient)
        logits = self._read(loop, cut.leaf)
        if logits.shape[:-1] != state.shape[:-1]:
            raise InputError(
                f"the readout made logits {tuple(logits.shape)} of a chunk of states {tuple(state.shape)}; expected "
                "(1, n, V), token by token. Declare 'contextual_readout', or use the plain form, chunk_tokens=None"
            )
        with torch.set_grad_enabled(self.gradients is not None):
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
            losses = F.cross_entropy(wide, targets, reduction="none")
            total = (losses * weight).sum()
        gradient = None if self.gradients is None else self._pulled_back(cut, total, torch.ones_like(total))
        return losses.detach(), gradient

    def _read(self, loop: int, state: Tensor) -> Tensor:
        device, trace = state.device.type, self._trace
        # A weight that autocast has cast before, for many uses, would have a graph from before the cut.
        uncached = torch.autocast(
            device,
            enabled=torch.is_autocast_enabled(device),
            dtype=torch.get_autocast_dtype(device),
            cache_enabled=False,
        )
        with torch.set_grad_enabled(self.gradients is not None), uncached:
            return trace.model.readout(state, trace.context, loop, trace.loops)

    def _pulled_back(self, cut: Cut, result: Tensor, gradient: Tensor) -> Tensor:
        """The gradient at the cut state that `gradient` at `result` stands for; those of parameters are summed."""
        assert self.gradients is not None
        if result is cut.leaf:
            return gradient
        leaves = cut.leaves(result)
        of_state, *of_leaves = torch.autograd.grad(result, [cut.leaf, *leaves], gradient, allow_unused=True)
        self.gradients.add(leaves, of_leaves)
        return torch.zeros_like(cut.leaf) if of_state is None else of_state


def _keeps_statistics(model: Looped) -> bool:
    """Whether parts of a model might write down something at each call: a part in training, and a buffer to do so."""
    modules = {module for root in model.modules() for module in root.modules()}
    return any(module.training and next(module.buffers(recurse=False), None) is not None for module in modules)
