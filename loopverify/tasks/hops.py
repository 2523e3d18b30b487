"""hops: follow d pointers through a map that is given in context.

Shapes: B instances, n symbols.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loopverify.arguments import check_count
from loopverify.tasks.task import Sequences, depths, shuffled

__all__ = ["Hops"]


@dataclass(frozen=True, kw_only=True)
class Hops:
    """f maps the n symbols to themselves; the question is f^d(start), for d in 1..depth.

    Tokens, T = n + 1: the n pairs (s -> f(s)) in random order, one token each, then one token (start, d). A symbol i as
    an answer is token i, a pair (s -> t) is n + s·n + t, a question (start, d) is n + n² + start·depth + d − 1.

    d is exact: the walk start, f(start), ..., f^d(start) visits d + 1 different symbols, so no shorter walk ends at the
    answer. Given the start, the answer is uniform over the n − 1 other symbols, at every d. The other pointers are
    drawn uniformly. The width is n: the number of pairs among which each pointer must be found.
    """

    symbols: int = 5
    """n, at least depth + 1."""
    depth: int = 4
    """The largest d."""

    def __post_init__(self) -> None:
        check_count("depth", self.depth)
        least = self.depth + 1
        check_count("symbols", self.symbols, f"an integer >= {least}, for a walk that visits none twice", least=least)

    @property
    def vocab_size(self) -> int:
        """Answers, pairs and questions."""
        return self.answers + self.symbols**2 + self.symbols * self.depth

    @property
    def answers(self) -> int:
        """n: the symbols. The best constant guess, any symbol but the start, is right with probability 1/(n − 1)."""
        return self.symbols

    @property
    def length(self) -> int:
        """n + 1."""
        return self.symbols + 1

    def draw(self, count: int, generator: torch.Generator, depth: int | None = None) -> Sequences:
        """See `Task.draw`."""
        n = self.symbols
        d = depths(count, generator, self.depth, depth)
        walk = shuffled(count, n, generator)  # its first d + 1 symbols are the walk
        anywhere = torch.randint(n, (count, n), generator=generator)
        leaves = torch.arange(n) < d[:, None]
        pointed = torch.where(leaves, walk.roll(-1, 1), anywhere)
        pairs = n + walk * n + pointed
        pairs = pairs.gather(1, shuffled(count, n, generator))
        question = n + n * n + walk[:, 0] * self.depth + d - 1
        answer = walk.gather(1, d[:, None])[:, 0]
        return Sequences.asked_last(torch.cat([pairs, question[:, None]], 1), answer, d)
