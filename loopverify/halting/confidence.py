"""The confidence scores that a halting rule can use, and what they cost.

| score              | per token                                         | head products/token   |
|--------------------|---------------------------------------------------|-----------------------|
| `margin`           | largest minus second largest logit (the paper's)  | 1                     |
| `max_probability`  | the largest probability                           | 1                     |
| `negative_entropy` | −entropy, nats                                    | 1                     |
| `state_change`     | −rms(H_k − H_{k−1}) / rms(H_k)                    | 0                     |
| `HeadScore(every)` | one of the first three, at every n-th token       | 1/n                   |
| `LowRankMargin`    | the margin through a head of rank r               | r·(1/D + 1/V)         |
| `CertifiedMargin`  | `margin`, from bounds at rank r and a few rows    | (r + 1)/D + D/V +     |
|                    | of the head                                       | rows in question/V    |

The last two are in `halting.low_rank`. The score of a sequence is the mean over its tokens. If a score needs a full
head product, a leaving sequence is decoded from it: the logits of an exit are computed once.

Shapes: n sequences, T tokens, D channels, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from loopverify.arguments import check_count
from loopverify.errors import unknown
from loopverify.halting.token_statistics import LOSS, TokenStatistics, exit_statistics
from loopverify.looped import Looped
from loopverify.theory import polar

__all__ = [
    "SCORES",
    "Arrival",
    "HeadScore",
    "Score",
    "StateChange",
    "Work",
    "named",
]


@dataclass(kw_only=True)
class Work:
    """The work that a run has executed so far; every part adds its own."""

    steps: int = 0
    """Tokens put through the step: T per loop and sequence."""
    products: float = 0.0
    """Tokens multiplied by the whole head."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrival:
    """Sequences after one loop, with all that a score may use."""

    model: Looped
    tokens: Tensor
    """(n, T) int64."""
    before: Tensor
    """H_{k-1}, (n, T, D)."""
    after: Tensor
    """H_k, (n, T, D)."""
    context: Any
    loop: int
    """k."""
    loops: int
    """K."""
    targets: Tensor | None = None
    """(n, T) int64."""
    numbers: Tensor | None = None
    """Indices of these sequences in the whole set, (n,) int64."""
    work: Work = field(default_factory=Work)

    def statistics(self, wants: Collection[str] = LOSS) -> TokenStatistics:
        """Statistics of every token, from the whole head; counted as work."""
        self.work.products += self.after.shape[:2].numel()
        return exit_statistics(
            self.model, self.after, self.context, self.loop, self.loops, targets=self.targets, wants=wants
        )

    def rows(self, chosen: Tensor) -> Arrival:
        """The chosen sequences, (n,) bool or indices; their context is computed again, as it may depend on the row."""
        parts = ("tokens", "before", "after", "targets", "numbers")
        some = {name: value[chosen] for name in parts if (value := getattr(self, name)) is not None}
        return replace(self, context=self.model.embed(some["tokens"])[1], **some)

    def at_tokens(self, chosen: slice) -> Arrival:
        """The chosen tokens of every sequence: possible because readouts work token by token."""
        parts = ("tokens", "before", "after", "targets")
        some = {name: value[:, chosen] for name in parts if (value := getattr(self, name)) is not None}
        return replace(self, **some)


class Score(ABC):
    """A measure of the confidence of an exit; larger is more confident."""

    name: str
    wants: frozenset[str] = frozenset()
    """The statistics that it needs from a full reading of the exit; empty if it needs none."""

    @abstractmethod
    def confidence(self, at: Arrival, reading: TokenStatistics | None) -> Tensor:
        """The confidence of each token that the score uses, (n, t).

        Args:
            reading: statistics of all tokens from the whole head, if the score `wants` any; otherwise None.
        """

    def of(self, at: Arrival) -> tuple[Tensor, TokenStatistics | None]:
        """The confidence (n, t), and the full reading that it needed, if any."""
        reading = at.statistics(self.wants | LOSS) if self.wants else None
        return self.confidence(at, reading), reading

    def leaves(self, at: Arrival, threshold: float) -> tuple[Tensor, TokenStatistics | None]:
        """Which sequences have a mean confidence above `threshold`, (n,) bool, and the full reading if there is one."""
        confidence, reading = self.of(at)
        return confidence.mean(-1) > threshold, reading


class StateChange(Score):
    """−rms(H_k − H_{k−1}) / rms(H_k): 0 if the state has stopped changing. Needs no head product."""

    name = "state_change"

    def confidence(self, at: Arrival, reading: TokenStatistics | None = None) -> Tensor:
        """(n, T)."""
        before, after = polar.at_least_float32(at.before), polar.at_least_float32(at.after)
        change = polar.scale(after - before)
        return -torch.where(change == 0, change, change / polar.scale(after))


_STATISTICS: Mapping[str, tuple[str, Callable[[TokenStatistics], Tensor]]] = MappingProxyType(
    {
        "margin": ("top", lambda reading: reading.margin),
        "max_probability": ("top", lambda reading: reading.top_probability),
        "negative_entropy": ("entropy", lambda reading: reading.negative_entropy),
    }
)


class HeadScore(Score):
    """A statistic of the logits, at every n-th token (counted from the last, which is always used).

    Args:
        statistic: 'margin', 'max_probability' or 'negative_entropy'.
        every: n. With 1 the head product is used for decoding as well.

    Raises:
        InputError: the statistic is unknown, or every < 1.
    """

    def __init__(self, statistic: str = "margin", every: int = 1) -> None:
        if not isinstance(statistic, str) or statistic not in _STATISTICS:
            raise unknown("statistic of the logits", statistic, _STATISTICS)
        check_count("every", every, "an integer >= 1: the score uses every n-th token")
        want, self._statistic = _STATISTICS[statistic]
        self.every, self._needs = every, frozenset({want}) | LOSS
        self.name = statistic if every == 1 else f"{statistic}/{every}"
        self.wants = self._needs if every == 1 else frozenset()

    def confidence(self, at: Arrival, reading: TokenStatistics | None = None) -> Tensor:
        """(n, ceil(T / every))."""
        if reading is None:
            reading = at.at_tokens(slice((at.after.shape[1] - 1) % self.every, None, self.every)).statistics(
                self._needs
            )
        return self._statistic(reading)


SCORES: Mapping[str, Score] = MappingProxyType(
    {**{name: HeadScore(name) for name in _STATISTICS}, "state_change": StateChange()}
)
"""The scores without parameters, by name."""


def named(score: str | Score) -> Score:
    """The score of this name; a `Score` is returned as it is.

    Raises:
        InputError: the name is unknown.
    """
    if isinstance(score, Score):
        return score
    if not isinstance(score, str) or score not in SCORES:
        raise unknown("halting score", score, SCORES)
    return SCORES[score]
