"""Cross-entropies of many exits without ever holding more than one chunk of logits.

The gradient of a cross-entropy with respect to its logits is known once they are: p − onehot(target). So the gradients
of state and head are formed in the forward pass, chunk by chunk in memory that is used again, and all exits add to one
gradient of the head (as Liger Kernel and cut-cross-entropy do for one exit; arXiv:2410.10989, arXiv:2411.09009).

Shapes: B batch, T tokens, N = B * T, D channels, V vocabulary, K loops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.objectives.ending import Ending, ending
from loopverify.objectives.formed import Cut, Gradients

__all__ = ["check_chunk_tokens", "weighted_sum"]


def weighted_sum(trace: Trace, targets: Tensor, weights: Mapping[int, Tensor], chunk_tokens: int) -> Tensor:
    """Σ_k Σ_t w_kt CE_kt, a scalar, in chunks of `chunk_tokens` tokens. Differentiable once, also in the weights.

    A readout that ends in a linear map (`F.linear`, `nn.Linear`) is run up to there, once for each exit. Any other is
    called on chunks (1, n, D) of the state instead, which it must be able to take (the check `readout_chunks`), or,
    for a model that declares 'contextual_readout', on all of it.

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
    gradients = Gradients() if trace.grad and torch.is_grad_enabled() else None
    sums = []
    with torch.no_grad():
        for loop, weight in weights.items():
            exit_ = _Exit(trace, loop, targets.flatten(), weight.detach().flatten(), chunk_tokens, gradients)
            losses = exit_.losses()
            sums.append((losses * exit_.weight).sum())
            if gradients is not None and weight.requires_grad:
                gradients.put(weight, losses.view_as(weight))
        total = torch.stack(sums).sum()
    return total if gradients is None else gradients.attach(total)


@dataclass(frozen=True, eq=False)
class _Exit:
    """One exit of a run, and what its tokens weigh."""

    trace: Trace
    loop: int
    targets: Tensor
    """(N,)."""
    weight: Tensor
    """(N,)."""
    chunk_tokens: int
    gradients: Gradients | None
    """Where the gradients of the weighted sum go; None: only its value is wanted."""

    def losses(self) -> Tensor:
        """Cross-entropies (N,), and with them the gradients."""
        state = self.trace.states[self.loop]
        cut = Cut(state)
        end = ending(self.trace.model, lambda: self._read(cut.leaf))
        losses, gradient = self._chunks_of_tokens(state) if end is None else self._chunks_of_logits(cut, end)
        if self.gradients is not None and gradient is not None and state.requires_grad:
            self.gradients.put(state, gradient.view_as(state))
        return losses

    def _chunks_of_logits(self, cut: Cut, end: Ending) -> tuple[Tensor, Tensor | None]:
        """The linear map at the end by hand, what precedes it by autograd."""
        with torch.autocast(end.shown.device.type, enabled=False):
            losses, gradient = _linear_cross_entropies(
                end, self.targets, self.weight, self.chunk_tokens, self.gradients
            )
        return losses, None if gradient is None else self._pulled_back(cut, end.shown, gradient)

    def _chunks_of_tokens(self, state: Tensor) -> tuple[Tensor, Tensor | None]:
        """Any readout by autograd, called on chunks."""
        whole = "contextual_readout" in self.trace.model.declares
        n = len(self.targets) if whole else self.chunk_tokens
        parts = [state] if whole else [part[None] for part in torch.split(state.flatten(0, 1), n)]
        made = [
            self._read_chunk(*of)
            for of in zip(parts, torch.split(self.targets, n), torch.split(self.weight, n), strict=True)
        ]
        losses, gradients = zip(*made, strict=True)
        return torch.cat(losses), None if self.gradients is None else torch.cat(gradients, 1)

    def _read_chunk(self, state: Tensor, targets: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        cut = Cut(state)
        logits = self._read(cut.leaf)
        if logits.shape[:-1] != state.shape[:-1]:
            raise InputError(
                f"the readout made logits {tuple(logits.shape)} of a chunk of states {tuple(state.shape)}; expected "
                "(1, n, V), token by token. Declare 'contextual_readout', or use the plain form, chunk_tokens=None"
            )
        with torch.set_grad_enabled(self.gradients is not None):
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
            losses = F.cross_entropy(wide, targets, reduction="none")
            total = (losses * weight).sum()
        return losses.detach(), None if self.gradients is None else self._pulled_back(
            cut, total, torch.ones_like(total)
        )

    def _read(self, state: Tensor) -> Tensor:
        device = state.device.type
        # A weight that autocast has cast before, for many uses, would have a graph from before the cut.
        uncached = torch.autocast(
            device,
            enabled=torch.is_autocast_enabled(device),
            dtype=torch.get_autocast_dtype(device),
            cache_enabled=False,
        )
        with torch.set_grad_enabled(self.gradients is not None), uncached:
            return self.trace.model.readout(state, self.trace.context, self.loop, self.trace.loops)

    def _pulled_back(self, cut: Cut, result: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of the cut state that `gradient` of `result` stands for; those of parameters are summed."""
        assert self.gradients is not None
        gradient = gradient.view_as(result).to(result.dtype)
        if result is cut.leaf:
            return gradient
        leaves = cut.leaves(result)
        of_state, *of_leaves = torch.autograd.grad(result, [cut.leaf, *leaves], gradient, allow_unused=True)
        self.gradients.add(leaves, of_leaves)
        return torch.zeros_like(cut.leaf) if of_state is None else of_state


def _linear_cross_entropies(
    end: Ending, targets: Tensor, weight: Tensor, n: int, gradients: Gradients | None
) -> tuple[Tensor, Tensor | None]:
    """Cross-entropies (N,), and the gradient (N, D) of their weighted sum at what is shown to the head."""
    dtype = _product_dtype(end)
    shown, matrix = end.shown.detach().flatten(0, -2).to(dtype), end.weight.detach().to(dtype)
    bias = None if end.bias is None else end.bias.detach().to(dtype)
    buffer = shown.new_empty(min(n, len(shown)), len(matrix))
    losses, gradient = [], None if gradients is None else torch.empty_like(shown)
    for begin in range(0, len(shown), n):
        part = slice(begin, begin + n)
        logits = buffer[: len(shown[part])]
        if bias is None:
            torch.mm(shown[part], matrix.mT, out=logits)
        else:
            torch.addmm(bias, shown[part], matrix.mT, out=logits)
        wide = logits.to(torch.promote_types(dtype, torch.float32))
        losses.append(_softmax_minus_target_(wide, targets[part]))
        if gradients is not None and gradient is not None:
            error = wide.to(dtype)
            torch.mm(error, matrix, out=gradient[part]).mul_(weight[part, None])
            _add_head_gradients(gradients, end, error, shown[part], weight[part])
    return torch.cat(losses), gradient


def _product_dtype(end: Ending) -> torch.dtype:
    """In which `F.linear` would multiply."""
    device, dtype = end.shown.device.type, torch.promote_types(end.shown.dtype, end.weight.dtype)
    autocast = torch.is_autocast_enabled(device) and dtype != torch.float64
    return torch.get_autocast_dtype(device) if autocast else dtype


def _softmax_minus_target_(logits: Tensor, targets: Tensor) -> Tensor:
    """Turn logits (n, V) into p − onehot(target), the gradient of the cross-entropies (n,) that are returned."""
    column = targets[:, None]
    logits.sub_(logits.amax(1, keepdim=True))
    at_target = logits.gather(1, column)
    total = logits.exp_().sum(1, keepdim=True)
    logits.div_(total).scatter_add_(1, column, -torch.ones_like(at_target))
    return (total.log() - at_target).squeeze(1)


def _add_head_gradients(gradients: Gradients, end: Ending, error: Tensor, shown: Tensor, weight: Tensor) -> None:
    """Add what a chunk tells the head: error (n, V), shown (n, D), weight (n,)."""
    if end.weight.requires_grad:
        sum_, weighted = gradients.of(end.weight), (shown * weight[:, None]).to(shown.dtype)
        if sum_.dtype == error.dtype:
            sum_.addmm_(error.mT, weighted)
        else:
            sum_.add_(error.mT @ weighted)
    if end.bias is not None and end.bias.requires_grad:
        gradients.of(end.bias).add_(error.mT @ weight.to(error.dtype))
