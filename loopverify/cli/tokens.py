"""Tokens for a command: read from a file, or drawn from the model's vocabulary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from loopverify.arguments import check_logits, check_seed
from loopverify.errors import InputError
from loopverify.looped import Looped, unroll
from loopverify.readonly import untouched

__all__ = ["Batch", "drawn_tokens", "read_tokens"]

BATCH, TOKENS = 4, 64


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Tokens, their next tokens, and a description of their source."""

    tokens: Tensor
    """(B, T) int64."""
    targets: Tensor
    """(B, T) int64, the next token of each."""
    source: str

    @classmethod
    def of(cls, sequences: Tensor, source: str, model: Looped) -> Batch:
        """The batch of sequences (B, T + 1), on the device of a model."""
        sequences = sequences.to(_device(model))
        return cls(tokens=sequences[:, :-1], targets=sequences[:, 1:], source=source)


def read_tokens(path: Path, model: Looped) -> Batch:
    """Sequences from a file: .json (a list of equally long lists of integers, or one list), .npy (integers of one or
    two dimensions), or any other suffix for a text with one sequence of integers per line.

    Raises:
        InputError: the file does not exist or does not contain integers, sequences differ in length or have fewer than
            two tokens, or a token is outside the model's vocabulary.
    """
    try:
        sequences = _sequences(path)
    except OSError as error:
        raise InputError(f"cannot read the tokens in {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, EOFError, RecursionError) as error:
        raise InputError(
            f"the tokens in {path} are not integers ({error}); expected a .json list of lists, an integer .npy, or a "
            "text with one sequence of integers per line"
        ) from error
    lengths = {len(sequence) for sequence in sequences}
    if len(lengths) != 1 or min(lengths) < 2:
        listed = ", ".join(map(str, sorted(lengths)))
        found = f"the sequences in {path} have lengths {listed}" if lengths else f"{path} has no sequences"
        raise InputError(
            f"{found}; expected one length of at least 2 tokens: a sequence of "
            "T + 1 gives T tokens and their T next tokens as targets. Cut or join the sequences to one length"
        )
    _check_vocabulary(sequences, path, _vocabulary(model, seed=0))
    tokens = torch.tensor(sequences, dtype=torch.int64)
    return Batch.of(tokens, f"{len(sequences)} × {tokens.shape[1] - 1} tokens from {path}", model)


def drawn_tokens(model: Looped, seed: int) -> Batch:
    """Random tokens of the model's vocabulary, whose size is read from the logits if the model does not declare it.

    Raises:
        InputError: a seed that torch does not accept, or a readout that returns no logits.
    """
    check_seed(seed)
    size = _vocabulary(model, seed)
    sequences = torch.randint(size, (BATCH, TOKENS + 1), generator=torch.Generator().manual_seed(seed))
    source = f"{BATCH} × {TOKENS} tokens drawn at random (seed {seed}) from a vocabulary of {size}"
    return Batch.of(sequences, source, model)


def _vocabulary(model: Looped, seed: int) -> int:
    """V, read from the logits if the model does not declare it."""
    if model.vocab_size is not None:
        return model.vocab_size
    with untouched(model, seed), torch.no_grad():
        trace = unroll(model, torch.zeros(1, 1, dtype=torch.int64, device=_device(model)), 1)
        return check_logits(trace.logits(1), trace.tokens, 1).shape[-1]


def _check_vocabulary(sequences: Sequence[Sequence[int]], path: Path, size: int) -> None:
    """Raise InputError for a token outside 0..size-1, also for the last one, which the model itself never reads."""
    for row, sequence in enumerate(sequences, start=1):
        for place, token in enumerate(sequence, start=1):
            if not 0 <= token < size:
                raise InputError(
                    f"token {place} of sequence {row} in {path} is {token}; expected 0..{size - 1} for a vocabulary of "
                    f"{size}. Was the text encoded with this model's tokenizer?"
                )


def _device(model: Looped) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _sequences(path: Path) -> list[list[int]]:
    if path.suffix == ".npy":
        array = np.load(path, allow_pickle=False)
        if not np.issubdtype(array.dtype, np.integer) or array.ndim not in (1, 2):
            raise ValueError(f"an array of {array.dtype} with {array.ndim} dimensions")
        listed = np.atleast_2d(array).tolist()
    elif path.suffix == ".json":
        listed = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(listed, list) and listed and not isinstance(listed[0], list):
            listed = [listed]
    else:
        lines = path.read_text(encoding="utf-8").splitlines()
        listed = [[int(word) for word in line.replace(",", " ").split()] for line in lines if line.strip()]
    return [[_integer(token) for token in sequence] for sequence in listed]


def _integer(token: object) -> int:
    if isinstance(token, bool) or not isinstance(token, int):
        raise TypeError(f"{token!r} is a {type(token).__name__}")
    return token
