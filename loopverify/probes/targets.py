"""The next token of every token, as a caller gives them."""

from __future__ import annotations

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.objectives.terms import IGNORE

__all__ = ["check_targets", "check_vocabulary"]


def check_targets(targets: object, tokens: object) -> None:
    """Refuse targets that are not int64 of the shape of tokens; what tokens must be is another's to say.

    Raises:
        InputError: with the shape that was expected, and how both come from one text.
    """
    shape = tuple(getattr(tokens, "shape", ()))
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64 or targets.shape != shape:
        seen = f"{targets.dtype} {tuple(targets.shape)}" if isinstance(targets, Tensor) else type(targets).__name__
        raise InputError(
            f"targets are {seen}; expected int64 {shape} as the tokens, one next token for every token "
            f"({IGNORE} leaves one out): of sequences (B, T + 1), tokens = sequences[:, :-1] and targets = "
            "sequences[:, 1:]"
        )


def check_vocabulary(targets: Tensor, size: int) -> None:
    """Refuse targets that are no token of a vocabulary of `size`, as many as there are logits.

    Raises:
        InputError: with the first of them.
    """
    outside = targets[(targets != IGNORE) & ((targets < 0) | (targets >= size))]
    if outside.numel():
        raise InputError(
            f"targets contain {int(outside[0])}; expected 0..{size - 1} for {size} logits ({IGNORE} leaves a token out)"
        )
