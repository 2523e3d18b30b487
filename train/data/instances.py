"""Instances of a task as examples: drawn again at every step for training, drawn once for evaluation.

Shapes: B instances per batch, T tokens per instance.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

import torch

from loopverify.tasks import Circuit, Hops, Paragg, Sequences
from train.data.examples import Batch, Share
from train.store.manifest import canonical, sha256

__all__ = ["TaskExamples", "TaskSpec"]

# Seeds of the generators that draw instances. Training adds the run's seed, which is >= 0, so that the training seed
# never equals the held-out seed.
_TRAINING, _HELD_OUT = 1_000_000, 999_999
_AT_ONCE = 1024
"""Held-out instances per batch."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """The task from which a preset draws its instances."""

    task: Hops | Circuit | Paragg

    @property
    def name(self) -> str:
        """The task's name, such as 'hops', which is the prefix of the conditions of its runs."""
        return type(self.task).__name__.lower()

    @property
    def vocab_max(self) -> int:
        """The number of token ids."""
        return self.task.vocab_size


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskExamples:
    """Instances of a task (see `Examples`)."""

    spec: TaskSpec
    batch: int
    """B, instances per training batch."""
    held_out_count: int
    """Number of held-out instances, which are drawn in one call."""

    @cached_property
    def digest(self) -> str:
        determined = {"task": self.spec.name, **asdict(self.spec.task), "seeds": [_TRAINING, _HELD_OUT]}
        return sha256(canonical(determined))

    @property
    def vocab_size(self) -> int:
        return self.spec.task.vocab_size

    @property
    def facts(self) -> Mapping[str, str]:
        sizes = ", ".join(f"{name} {value}" for name, value in asdict(self.spec.task).items())
        return {"task": f"{self.spec.name} ({sizes})", "vocabulary": str(self.vocab_size)}

    @property
    def count(self) -> None:
        return None

    def training(self, seed: int, start: int, share: Share) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(_TRAINING + seed)
        for step in itertools.count():
            # One stream of random numbers per run, so that a run that resumes at step `start` has to repeat the draws
            # of all steps before it. That takes a second for some thousand steps; a generator per step would avoid it,
            # but would change all stored results.
            drawn = self.spec.task.draw(self.batch, generator)
            if step >= start:
                rows = share(torch.arange(self.batch))
                yield drawn.tokens[rows], drawn.targets[rows]

    def held_out(self, count: int) -> Iterator[Batch]:
        count = min(count, self.held_out_count)
        size = min(count, _AT_ONCE)
        for begin in range(0, count - count % size, size):
            rows = slice(begin, begin + size)
            yield self._held_out.tokens[rows], self._held_out.targets[rows]

    def by_depth(self) -> Mapping[int, Batch]:
        drawn = self._held_out
        return {
            d: (drawn.tokens[drawn.depths == d], drawn.targets[drawn.depths == d])
            for d in sorted(set(drawn.depths.tolist()))
        }

    @cached_property
    def _held_out(self) -> Sequences:
        return self.spec.task.draw(self.held_out_count, torch.Generator().manual_seed(_HELD_OUT))
