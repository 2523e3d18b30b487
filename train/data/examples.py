"""Examples: the training and held-out data of a run, either windows of a text or instances of a task.

The engine uses data through this interface only. A training batch is a function of the run's seed and the step, so that
a run resumes exactly at any step without a position in the data in its checkpoint.

Shapes: B examples per batch, T tokens per example.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from train.data.corpus import Corpus
from train.data.windows import Windows

__all__ = ["Batch", "Examples", "TextExamples"]

Batch = tuple[Tensor, Tensor]
"""Tokens and targets, each (B, T) int64; targets of -100 are excluded from every loss."""
Share = Callable[[Tensor], Tensor]
"""Maps the indices (B,) of a batch to those of one process."""


class Examples(Protocol):
    """Training and held-out examples, each of T tokens."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything that determines the examples, except the fields of the preset."""

    @property
    def vocab_size(self) -> int:
        """V; tokens are in 0..V-1."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Human-readable facts by name, for the record of a run."""

    @property
    def count(self) -> int | None:
        """Training examples per epoch; None if every step draws new ones."""

    def training(self, seed: int, start: int, share: Share) -> Iterator[Batch]:
        """Endless batches of the training steps start, start + 1, ... (the first step is 0).

        Args:
            seed: the seed of the run.
            share: selects this process's examples of a batch.
        """

    def held_out(self, count: int) -> Iterator[Batch]:
        """`count` held-out examples, the same in every run, in batches of equal size.

        The count is rounded down to a multiple of the batch size; if there are fewer than `count`, all are returned.
        """

    def by_depth(self) -> Mapping[int, Batch]:
        """Held-out examples by the number of steps d of their answers; empty if examples have no answers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TextExamples:
    """Windows of a tokenized text (see `Examples`): overlapping ones to train on, separate ones to evaluate on."""

    corpus: Corpus
    length: int
    """T, tokens per window."""
    stride: int
    """Tokens between the starts of neighboring training windows."""
    batch: int
    """B, windows per batch."""

    @property
    def digest(self) -> str:
        return self.corpus.digest

    @property
    def vocab_size(self) -> int:
        return self.corpus.vocab_size

    @property
    def facts(self) -> Mapping[str, str]:
        return {
            "text": self.corpus.recorded_name,
            "train tokens": str(len(self.corpus.train)),
            "held-out tokens": str(len(self.corpus.held_out)),
            "vocabulary": str(self.vocab_size),
        }

    @property
    def count(self) -> int:
        return len(self.windows)

    def training(self, seed: int, start: int, share: Share) -> Iterator[Batch]:
        for step in itertools.count(start):
            yield self.windows.batch(share(self.windows.order(step, self.batch, seed)))

    def held_out(self, count: int) -> Iterator[Batch]:
        windows = Windows(self.corpus.held_out, self.length, self.length, name="held-out text")
        return windows.evenly_spaced(count, self.batch)

    def by_depth(self) -> Mapping[int, Batch]:
        return {}

    @cached_property
    def windows(self) -> Windows:
        """The training windows; an InputError is raised if the text is shorter than one."""
        return Windows(self.corpus.train, self.length, self.stride, name="training text")
