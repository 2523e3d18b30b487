"""The cross-entropy behind a linear head, with its gradients, by hand and in one buffer of logits.

Shapes: N tokens, n of them at a time, D channels, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopverify.objectives.eager_gradients import Gradients
from loopverify.objectives.head_input import HeadInput

__all__ = ["HeadLoss"]


class HeadLoss:
    """Cross-entropies of what is shown to a head, `chunk_tokens` at a time, in memory that is used again."""

    def __init__(self, chunk_tokens: int) -> None:
        self.chunk_tokens = chunk_tokens
        self._logits: Tensor | None = None
        self._cast: tuple[Tensor, Tensor] | None = None

    def __call__(
        self, end: HeadInput, targets: Tensor, weight: Tensor, gradients: Gradients | None
    ) -> tuple[Tensor, Tensor | None]:
        """Cross-entropies (N,), and the gradient of Σ w CE at what is shown, of its shape; the head's is added.

        Args:
            targets, weight: (N,).
            gradients: where the head's gradients are summed; None: no gradient is wanted.
        """
        dtype = _product_dtype(end)
        shown = end.shown.detach().flatten(0, -2).to(dtype)
        made = None if gradients is None else torch.empty_like(shown)
        losses = []
        with torch.autocast(shown.device.type, enabled=False):
            for begin in range(0, len(shown), self.chunk_tokens):
                part = slice(begin, begin + self.chunk_tokens)
                logits = self._product(end, shown[part])
                error = logits.to(torch.promote_types(dtype, torch.float32))
                losses.append(_softmax_minus_target_(error, targets[part]))
                if gradients is not None and made is not None:
                    error = error.to(dtype)
                    torch.mm(error, self._matrix(end.weight, dtype), out=made[part])
                    made[part].mul_(weight[part, None])
                    _add(gradients, end, error, shown[part], weight[part])
        return torch.cat(losses), None if made is None else made.view_as(end.shown).to(end.shown.dtype)

    def _product(self, end: HeadInput, shown: Tensor) -> Tensor:
        """Logits (n, V), in the buffer."""
        matrix = self._matrix(end.weight, shown.dtype).mT
        if self._logits is None or self._logits.shape[1] != matrix.shape[1] or len(self._logits) < len(shown):
            self._logits = shown.new_empty(len(shown), matrix.shape[1])
        out = self._logits[: len(shown)]
        if end.bias is None:
            return torch.mm(shown, matrix, out=out)
        return torch.addmm(end.bias.detach().to(shown.dtype), shown, matrix, out=out)

    def _matrix(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight in the dtype of the product, cast once for all chunks."""
        if self._cast is None or self._cast[0] is not weight:
            self._cast = weight, weight.detach().to(dtype)
        return self._cast[1]


def _product_dtype(end: HeadInput) -> torch.dtype:
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


def _add(gradients: Gradients, end: HeadInput, error: Tensor, shown: Tensor, weight: Tensor) -> None:
    """What a chunk tells the head: error (n, V), shown (n, D), weight (n,)."""
    if end.weight.requires_grad:
        sum_, weighted = gradients.of(end.weight), (shown * weight[:, None]).to(shown.dtype)
        if sum_.dtype == error.dtype:
            sum_.addmm_(error.mT, weighted)
        else:
            sum_.add_(error.mT @ weighted)
    if end.bias is not None and end.bias.requires_grad:
        gradients.of(end.bias).add_(error.mT @ weight.to(error.dtype))
