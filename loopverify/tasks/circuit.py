"""circuit: evaluate a Boolean circuit of depth d.

Shapes: B instances, w wires a level.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.arguments import check_count
from loopverify.tasks.task import Sequences, depths

__all__ = ["Circuit"]

# Value of (a, b) = 00, 01, 10, 11 for AND, OR, XOR and their negations. Closed under negation, so a gate drawn
# uniformly is 1 half of the time for any inputs.
_GATES = torch.tensor(
    [[0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 1, 0], [1, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 1]], dtype=torch.int64
)


@dataclass(frozen=True, kw_only=True)
class Circuit:
    """w input bits, then levels 1..depth of w gates, each reading two wires of the level below; the question is the
    value of one gate of level d.

    Tokens, T = w + depth·w + 1: the inputs by wire, the gates by level and wire, then one token (d, wire). Tokens 0 and
    1 are the answers; input i with bit b is 2 + 2i + b; a gate g (AND, OR, XOR, NAND, NOR, XNOR = 0..5) of the wires a
    and b is 2 + 2w + g·w² + a·w + b; a question (d, wire) is 2 + 2w + 6w² + (d − 1)·w + wire.

    d is exact: every path from the asked gate to an input passes d gates. All levels are present for every
    question, so the length does not reveal d. Gates are uniform over the six, and pairs of wires uniform over the
    unequal ones, which balances the answers: each has probability 1/2, at every d and w.
    """

    width: int = 4
    """w, at least 2."""
    depth: int = 4
    """The largest d."""

    def __post_init__(self) -> None:
        check_count("depth", self.depth)
        check_count("width", self.width, "an integer >= 2, for gates that read two wires", least=2)

    @property
    def vocab_size(self) -> int:
        """Answers, inputs, gates and questions."""
        w = self.width
        return self.answers + 2 * w + len(_GATES) * w * w + self.depth * w

    @property
    def answers(self) -> int:
        """2: the bits."""
        return 2

    @property
    def length(self) -> int:
        """w + depth·w + 1."""
        return self.width * (self.depth + 1) + 1

    def draw(self, count: int, generator: torch.Generator, depth: int | None = None) -> Sequences:
        """See `Task.draw`."""
        w = self.width
        d = depths(count, generator, self.depth, depth)
        bits = torch.randint(2, (count, w), generator=generator)
        parts, levels = [2 + 2 * torch.arange(w) + bits], [bits]
        for _ in range(self.depth):
            gates, a, b = self._gates(count, generator)
            levels.append(_GATES[gates, 2 * levels[-1].gather(1, a) + levels[-1].gather(1, b)])
            parts.append(2 + 2 * w + gates * w * w + a * w + b)
        wire = torch.randint(w, (count,), generator=generator)
        parts.append((2 + 2 * w + len(_GATES) * w * w + (d - 1) * w + wire)[:, None])
        answers = torch.stack(levels, 1)[torch.arange(count), d, wire]
        return Sequences.asked_last(torch.cat(parts, 1), answers, d)

    def _gates(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """One level: gates and the two unequal wires that each reads, (count, w) each."""
        w = self.width
        gates = torch.randint(len(_GATES), (count, w), generator=generator)
        a = torch.randint(w, (count, w), generator=generator)
        b = (a + torch.randint(1, w, (count, w), generator=generator)) % w
        return gates, a, b
