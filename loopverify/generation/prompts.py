"""Prompts of different lengths as one batch, after checking every token.

Shapes: B prompts, T tokens in the longest one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopverify.errors import InputError

__all__ = ["Prompts", "padded", "token_range"]

Prompts = Tensor | Sequence[Tensor | Sequence[int]]


def token_range(vocab_size: int | None) -> tuple[float, str]:
    """The largest token id and the range as text; the id is infinite if the size of the vocabulary is unknown."""
    if vocab_size is None:
        return math.inf, "0 and above"
    return vocab_size - 1, f"0..{vocab_size - 1} for a vocabulary of {vocab_size}"


def padded(prompts: Prompts, vocab_size: int | None, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Prompts as one batch, padded on the left with token 0: (B, T) int64, and a mask (B, T) bool, True at real tokens.

    Raises:
        InputError: there are no prompts, a prompt is empty, or a token is outside the vocabulary.
    """
    rows = [_row(place, prompt, vocab_size, device) for place, prompt in enumerate(_listed(prompts))]
    if not rows:
        raise InputError("no prompts; expected at least one sequence of token ids")
    longest = max(map(len, rows))
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64, device=device)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for place, row in enumerate(rows):
        tokens[place, longest - len(row) :] = row
        mask[place, longest - len(row) :] = True
    return tokens, mask


def _listed(prompts: Any) -> list[object]:
    try:
        return list(prompts)
    except TypeError as error:
        raise InputError(f"prompts are {prompts!r}; expected a sequence of sequences of token ids") from error


def _row(place: int, prompt: object, vocab_size: int | None, device: torch.device | None) -> Tensor:
    """One prompt, (T,), checked."""
    try:
        row = torch.as_tensor(prompt, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"prompt {place} is {prompt!r}; expected a sequence of token ids ({error})") from error
    if row.ndim != 1 or not len(row) or row.dtype == torch.bool or row.is_floating_point() or row.is_complex():
        raise InputError(
            f"prompt {place} is {row.dtype} {tuple(row.shape)}; expected a sequence of at least one token id"
        )
    most, expected = token_range(vocab_size)
    outside = ((row < 0) | (row > most)).nonzero()
    if len(outside):
        at = int(outside[0])
        raise InputError(
            f"prompt {place} has token {int(row[at])} at position {at}; expected {expected}. Was the text encoded with "
            "this model's tokenizer?"
        )
    return row
