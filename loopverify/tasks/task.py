"""What every task shares: the form of its sequences, and how depths are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from loopverify.arguments import check_count
from loopverify.errors import InputError

__all__ = ["NOT_ASKED", "Sequences", "Task", "depths", "shuffled"]

NOT_ASKED = -100
"""The target where nothing is asked, which torch.nn.functional.cross_entropy ignores."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sequences:
    """B drawn instances of T tokens."""

    tokens: Tensor
    """(B, T) int64."""
    targets: Tensor
    """(B, T) int64: the token of the answer at the last position, `NOT_ASKED` at all others."""
    depths: Tensor
    """(B,) int64: d, the number of steps that each answer takes."""

    @classmethod
    def asked_last(cls, tokens: Tensor, answers: Tensor, depths: Tensor) -> Self:
        """Sequences whose last token asks for `answers` (B,)."""
        targets = torch.full_like(tokens, NOT_ASKED)
        targets[:, -1] = answers
        return cls(tokens=tokens, targets=targets, depths=depths)


class Task(Protocol):
    """A family of instances at fixed sizes. Depth and width are independent of each other and of the length T."""

    @property
    def vocab_size(self) -> int:
        """V: every token is in 0..V-1."""

    @property
    def answers(self) -> int:
        """How many answers there are: the tokens 0..answers-1."""

    @property
    def length(self) -> int:
        """T, the same for every depth."""

    def draw(self, count: int, generator: torch.Generator, depth: int | None = None) -> Sequences:
        """`count` instances drawn with `generator` (on the CPU).

        Args:
            depth: of every instance; drawn uniformly from 1 to the task's `depth` when omitted.

        Raises:
            InputError: a count below 1, or a depth outside 1..the task's `depth`.
        """


def depths(count: int, generator: torch.Generator, deepest: int, depth: int | None) -> Tensor:
    """(count,) int64: `depth` of every instance, or uniform over 1..deepest. Raises as `Task.draw`."""
    check_count("count", count)
    if depth is None:
        return torch.randint(1, deepest + 1, (count,), generator=generator)
    if not 1 <= depth <= deepest:
        raise InputError(f"depth is {depth}; expected 1..{deepest}, the largest depth of this task")
    return torch.full((count,), depth)


def shuffled(count: int, size: int, generator: torch.Generator) -> Tensor:
    """(count, size) int64: a uniform permutation of 0..size-1 in every row."""
    return torch.rand(count, size, generator=generator, dtype=torch.float64).argsort(1)
