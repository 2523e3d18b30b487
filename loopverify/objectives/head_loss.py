"""The cross-entropy behind a linear head and its gradients, computed by hand in one buffer of logits.

For logits z = W h + b of one token and its loss CE = logsumexp(z) − z_target, the gradient at z is
g = softmax(z) − onehot(target). With the token's weight w in Σ w CE, the chain rule gives w Wᵀg at h, and the sums over
tokens Σ w g hᵀ at W and Σ w g at b. So g overwrites z, and no second array of size (n, V) is needed.

Shapes: N tokens, n of them at a time, D channels, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopverify.objectives.eager_gradients import Gradients
from loopverify.objectives.head_input import HeadInput

__all__ = ["HeadLoss"]


class HeadLoss:
    """Cross-entropies of the inputs of a head, `chunk_tokens` at a time, in memory that is reused between calls."""

    def __init__(self, chunk_tokens: int) -> None:
        self.chunk_tokens = chunk_tokens
        self._logits: Tensor | None = None
        self._cast: tuple[Tensor, Tensor] | None = None

    def __call__(
        self, head: HeadInput, targets: Tensor, weight: Tensor, gradients: Gradients | None
    ) -> tuple[Tensor, Tensor | None]:
        """Cross-entropies (N,), and the gradient of Σ w CE at `head.hidden`, of its shape.

        Args:
            targets, weight: (N,).
            gradients: the gradients of the head's weight and bias are added to it; None: no gradients are computed.
        """
        dtype = _product_dtype(head)
        hidden = head.hidden.detach().flatten(0, -2).to(dtype)
        at_hidden = None if gradients is None else torch.empty_like(hidden)
        losses = []
        with torch.autocast(hidden.device.type, enabled=False):  # the dtype is chosen above, as autocast would
            for begin in range(0, len(hidden), self.chunk_tokens):
                part = slice(begin, begin + self.chunk_tokens)
                logits = self._product(head, hidden[part])
                error = logits.to(torch.promote_types(dtype, torch.float32))
                losses.append(_softmax_minus_target_(error, targets[part]))
                if gradients is not None and at_hidden is not None:
                    error = error.to(dtype)
                    torch.mm(error, self._matrix(head.weight, dtype), out=at_hidden[part])
                    at_hidden[part].mul_(weight[part, None])
                    _add_head_gradients(gradients, head, error, hidden[part], weight[part])
        if at_hidden is not None:
            at_hidden = at_hidden.view_as(head.hidden).to(head.hidden.dtype)
        return torch.cat(losses), at_hidden

    def _product(self, head: HeadInput, hidden: Tensor) -> Tensor:
        """Logits (n, V), in the buffer."""
        matrix = self._matrix(head.weight, hidden.dtype).mT
        if self._logits is None or self._logits.shape[1] != matrix.shape[1] or len(self._logits) < len(hidden):
            self._logits = hidden.new_empty(len(hidden), matrix.shape[1])
        out = self._logits[: len(hidden)]
        if head.bias is None:
            return torch.mm(hidden, matrix, out=out)
        return torch.addmm(head.bias.detach().to(hidden.dtype), hidden, matrix, out=out)

    def _matrix(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight in the dtype of the product, cast once for all chunks."""
        if self._cast is None or self._cast[0] is not weight:
            self._cast = weight, weight.detach().to(dtype)
        return self._cast[1]


def _product_dtype(head: HeadInput) -> torch.dtype:
    """The dtype in which `F.linear` would multiply."""
    device, dtype = head.hidden.device.type, torch.promote_types(head.hidden.dtype, head.weight.dtype)
    autocast = torch.is_autocast_enabled(device) and dtype != torch.float64
    return torch.get_autocast_dtype(device) if autocast else dtype


def _softmax_minus_target_(logits: Tensor, targets: Tensor) -> Tensor:
    """Overwrite logits (n, V) by softmax − onehot(target), and return the cross-entropies (n,)."""
    column = targets[:, None]
    logits.sub_(logits.amax(1, keepdim=True))  # exp cannot overflow, and softmax and loss do not change
    at_target = logits.gather(1, column)
    total = logits.exp_().sum(1, keepdim=True)
    logits.div_(total).scatter_add_(1, column, -torch.ones_like(at_target))
    return (total.log() - at_target).squeeze(1)


def _add_head_gradients(gradients: Gradients, head: HeadInput, error: Tensor, hidden: Tensor, weight: Tensor) -> None:
    """Add a chunk's gradients at the head's weight and bias: error (n, V), hidden (n, D), weight (n,)."""
    if head.weight.requires_grad:
        sum_, weighted = gradients.sum_for(head.weight), (hidden * weight[:, None]).to(hidden.dtype)
        if sum_.dtype == error.dtype:
            sum_.addmm_(error.mT, weighted)
        else:  # a half-precision product, added up in float32
            sum_.add_(error.mT @ weighted)
    if head.bias is not None and head.bias.requires_grad:
        gradients.sum_for(head.bias).add_(error.mT @ weight.to(error.dtype))
