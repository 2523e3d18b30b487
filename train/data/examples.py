"""Examples: what a run is trained and evaluated on, whether windows of a text or instances of a task.

The engine knows data by this interface only. A training batch is a function of the run's seed and the step, so that a
run resumes at any step exactly without any state of the data in its checkpoint.

Shapes: B examples of a batch, T tokens of an example.
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
"""Tokens and targets, each (B, T) int64; targets of -100 are left out of every loss."""
Share = Callable[[Tensor], Tensor]
"""From the indices (B,) of a batch to those of them that one process takes."""


class Examples(Protocol):
    """Training and held-out examples, all of T tokens."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything that determines the examples besides the fields of the preset."""

    @property
    def vocab_size(self) -> int:
        """V: every token is in 0..V-1."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Human-readable facts by name, for the record of a run."""

    @property
    def count(self) -> int | None:
        """Training examples of one epoch; None where every step has fresh ones."""

    def training(self, seed: int, start: int, share: Share) -> Iterator[Batch]:
        """The batches of the training steps start, start + 1, ... (the first step is 0), without end.

        Args:
            seed: of the run.
            share: selects the examples of a batch that the caller takes.
        """

    def held_out(self, count: int) -> Iterator[Batch]:
        """`count` held-out examples, the same in every run, in batches of one size, to which the count is rounded down.

        Where there are fewer than `count`, all of them.
        """

    def by_depth(self) -> Mapping[int, Batch]:
        """The held-out examples by the steps d that their answers take; empty where examples have no answers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TextExamples:
    """Windows of a tokenized text (see `Examples`): overlapping ones to train on, separate ones to evaluate on."""

    corpus: Corpus
    length: int
    """T."""
    stride: int
    """Tokens between the starts of neighboring training windows."""
    batch: int
    """B."""

    @property
    def digest(self) -> str:
        return self.corpus.digest

    @property
    def vocab_size(self) -> int:
        return self.corpus.vocab_size

    @property
    def facts(self) -> Mapping[str, str]:
        return {
            "text": self.corpus.name,
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
        """The training windows. Raises an InputError where the text is shorter than one."""
        return Windows(self.corpus.train, self.length, self.stride, name="training text")
