"""Windows of a token stream: the tokens of each training step and of an evaluation, without a state to resume.

Shapes: N tokens of the stream, B windows per batch, T tokens per window.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from loopverify.errors import InputError
from train.data.shards import Tokens

__all__ = ["Windows"]

_INTEGERS = (torch.int16, torch.int32, torch.int64)


class Windows:
    """Windows of `length` tokens that start every `stride` tokens of a stream; `len()` is their number.

    Each window takes length + 1 tokens: inputs and, shifted by one token, targets. Tokens after the last whole window
    are not used.
    """

    def __init__(self, tokens: Tokens | Tensor, length: int, stride: int, *, name: str = "text") -> None:
        """
        Args:
            tokens: a stream of N tokens, or integers (N,).
            length: T; the paper's is 256.
            stride: tokens between the starts of consecutive windows; the paper's is 128.
            name: the name of the stream in error messages.

        Raises:
            InputError: the stream is shorter than one window, or an argument has the wrong type or shape.
        """
        for what, value in (("length", length), ("stride", stride)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{what} is {value!r}; expected an integer >= 1")
        if not isinstance(tokens, Tokens):
            if not isinstance(tokens, Tensor) or tokens.ndim != 1 or tokens.dtype not in _INTEGERS:
                seen = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
                raise InputError(f"the tokens of the {name} are {seen}; expected an integer tensor of shape (N,)")
            tokens = Tokens.of(tokens)
        if len(tokens) < length + 1:
            raise InputError(
                f"the {name} has {len(tokens)} tokens; expected at least {length + 1}, which one window of "
                f"{length} takes with its targets. Give more text or shorten the windows"
            )
        self.tokens, self.length, self.stride, self.name = tokens, length, stride, name

    def __len__(self) -> int:
        return (len(self.tokens) - self.length - 1) // self.stride + 1

    def batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each (B, T) int64, of the windows with the given indices (B,).

        Raises:
            InputError: an index is outside 0..len-1.
        """
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        if chosen.ndim != 1 or len(chosen) == 0 or int(chosen.min()) < 0 or int(chosen.max()) >= len(self):
            raise InputError(
                f"window indices {chosen.tolist()}; expected a row of integers in 0..{len(self) - 1}, "
                f"the windows that the {self.name} has"
            )
        return self._at(chosen * self.stride)

    def order(self, step: int, batch: int, seed: int) -> Tensor:
        """Indices (batch,) of the windows of training step 0, 1, 2, ...: a function of its arguments alone.

        Every epoch of len // batch steps has its own permutation of the windows, whose last len % batch are left out.
        A run therefore resumes exactly at any step, without a stored position.

        Raises:
            InputError: step or seed < 0, or batch outside 1..len.
        """
        if batch < 1 or batch > len(self):
            raise InputError(
                f"batch is {batch}; expected 1..{len(self)}, the windows that the {self.name} has. "
                "Give more text or a smaller batch"
            )
        if step < 0 or seed < 0:
            raise InputError(f"step is {step} and seed {seed}; expected integers >= 0")
        epoch, place = divmod(step, len(self) // batch)
        return _permutation(len(self), seed, epoch)[place * batch : (place + 1) * batch].clone()

    def evenly_spaced(self, count: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (inputs, targets) of `count` windows spread evenly over the stream, without overlap.

        They depend neither on a seed nor on the stride. All batches have the same size, so that a mean over batches
        is a mean over windows. `count` is therefore limited to the windows of the stream and rounded down to a multiple
        of `batch`; if fewer than `batch` remain, they form one batch.

        Raises:
            InputError: count or batch < 1.
        """
        if count < 1 or batch < 1:
            raise InputError(f"count is {count} and batch {batch}; expected integers >= 1")
        apart = (len(self.tokens) - 1) // self.length
        count = min(count, apart)
        size = min(batch, count)
        count -= count % size
        starts = torch.arange(count) * apart // count * self.length
        return (self._at(starts[first : first + size]) for first in range(0, count, size))

    def _at(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        taken = self.tokens.at(starts, self.length + 1)
        return taken[:, :-1].contiguous(), taken[:, 1:].contiguous()


@lru_cache(maxsize=2)
def _permutation(count: int, seed: int, epoch: int) -> Tensor:
    """A permutation of 0..count-1 that neither reads nor changes the global random state."""
    mixed = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(mixed[:8], "big") >> 1)
    return torch.randperm(count, generator=generator)
