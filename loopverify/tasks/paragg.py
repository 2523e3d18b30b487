"""paragg: the parity of w answers, each at the end of d pointers.

Shapes: B instances, n symbols, w walks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loopverify.arguments import check_count
from loopverify.tasks.task import Sequences, depths, shuffled

__all__ = ["Paragg"]


@dataclass(frozen=True, kw_only=True)
class Paragg:
    """f is one cycle through the n symbols and each symbol has a bit; the question is the parity of the bits of f^d(s)
    over w starts s.

    Tokens, T = 2n + w + 1: the n pairs (s -> f(s)) in random order, the bits of the symbols in random order, the w
    starts, which differ, and d. Tokens 0 and 1 are the answers; a pair (s -> t) is 2 + s·n + t; a symbol s with bit b
    is 2 + n² + 2s + b; a start s is 2 + n² + 2n + s; a depth d is 2 + n² + 3n + d − 1.

    d is exact for every walk: fewer than n steps on the cycle visit no symbol twice, and since n > 2·depth the way
    backwards is longer. f is one-to-one, so different starts have different ends, and the parity is that of w
    independent fair bits: each answer has probability 1/2, at every d and w.
    """

    symbols: int = 9
    """n, more than 2·depth and at least w."""
    depth: int = 4
    """The largest d."""
    width: int = 2
    """w, the number of walks whose bits are added."""

    def __post_init__(self) -> None:
        check_count("depth", self.depth)
        check_count("width", self.width)
        least = 2 * self.depth + 1
        expected = f"an integer >= {least}, for a cycle on which the way back is no shorter"
        check_count("symbols", self.symbols, expected, least=least)
        check_count("symbols", self.symbols, f"an integer >= {self.width}, for starts that differ", least=self.width)

    @property
    def vocab_size(self) -> int:
        """Answers, pairs, bits, starts and depths."""
        return self.answers + self.symbols**2 + 3 * self.symbols + self.depth

    @property
    def answers(self) -> int:
        """2: even and odd."""
        return 2

    @property
    def length(self) -> int:
        """2n + w + 1."""
        return 2 * self.symbols + self.width + 1

    def draw(self, count: int, generator: torch.Generator, depth: int | None = None) -> Sequences:
        """See `Task.draw`."""
        n, pairs_from = self.symbols, self.answers
        bits_from = pairs_from + n * n
        d = depths(count, generator, self.depth, depth)
        cycle = shuffled(count, n, generator)
        pairs = pairs_from + cycle * n + cycle.roll(-1, 1)
        bits = torch.randint(2, (count, n), generator=generator)  # of the symbols in the order of the cycle
        carriers = bits_from + 2 * cycle + bits
        places = shuffled(count, n, generator)[:, : self.width]  # of the starts on the cycle
        starts = bits_from + 2 * n + cycle.gather(1, places)
        ends = bits.gather(1, (places + d[:, None]) % n)
        parts = [
            pairs.gather(1, shuffled(count, n, generator)),
            carriers.gather(1, shuffled(count, n, generator)),
            starts,
            (bits_from + 3 * n + d - 1)[:, None],
        ]
        return Sequences.asked_last(torch.cat(parts, 1), ends.sum(1) % 2, d)
