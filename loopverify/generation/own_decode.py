"""Sequences continued by a model's own `decode`, which runs all loops in one call and has an opaque cache.

Shapes: B rows, t new tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopverify.arguments import check_tokens
from loopverify.looped import Looped

__all__ = ["OwnCaches"]


class OwnCaches:
    """A batch of sequences with one cache each, since `decode` has no padding and its caches cannot drop rows."""

    def __init__(self, model: Looped, rows: int, loops: int) -> None:
        self.loops, self.executed = loops, 0
        self._model, self._caches = model, [None] * rows

    @torch.no_grad()
    def extend(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """As `Sequences.extend`; the logits at padding are zero."""
        check_tokens(tokens, self._model.vocab_size)
        assert self._model.decode is not None
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        shown: Tensor | None = None
        for row, cache in enumerate(self._caches):
            if mask[row].any():
                logits, self._caches[row] = self._model.decode(tokens[row, mask[row]][None], cache, self.loops)
                shown = logits.new_zeros(*tokens.shape, logits.shape[-1]) if shown is None else shown
                shown[row, mask[row]] = logits[0]
        self.executed += self.loops * int(mask.sum())
        assert shown is not None
        return shown

    prefill = extend

    def keep(self, rows: Tensor) -> None:
        """As `Sequences.keep`."""
        chosen = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows
        self._caches = [self._caches[row] for row in chosen.tolist()]
