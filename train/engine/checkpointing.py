"""Checkpointer: the log of a run in training, and its checkpoints at the right moments."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loopverify.errors import InputError
from train.engine.events import Event, Report
from train.resume.checkpoint import Checkpoint, Checkpoints
from train.resume.preemption import PreemptedError, Preemption
from train.store import Say, StoreError

if TYPE_CHECKING:
    from train.engine.stepper import Stepper

__all__ = ["CheckpointPolicy", "Checkpointer"]

_SAVE, _STOP = 1, 2


@dataclass(frozen=True, kw_only=True)
class CheckpointPolicy:
    """How a run in progress is kept."""

    every: float = 60.0
    """Seconds between checkpoints, at the end of a step; 0: after every step."""
    keep: int = 2
    """How many checkpoints there are at most; more than one, in case the last is torn."""
    preemption: Preemption = field(default_factory=Preemption)
    start: Checkpoint | None = None
    """Where a run without a checkpoint of its own starts; the first step when omitted."""

    def __post_init__(self) -> None:
        if not self.every >= 0:
            raise InputError(f"checkpoint-every is {self.every}; expected seconds >= 0")


class Checkpointer:
    """Keeps one run in training so that it can be killed at any moment."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        run: Mapping[str, Any],
        policy: CheckpointPolicy,
        report: Report,
        say: Say,
    ) -> None:
        self._lines: list[str] = []
        self._checkpoints, self._run, self._policy = checkpoints, run, policy
        self._report, self._say = report, say
        self._saved = time.monotonic()

    def note(self, event: Event) -> None:
        """A line of the log that nobody watches."""
        self._lines.append(json.dumps(event))

    def report(self, event: Event) -> None:
        """A line of the log."""
        self.note(event)
        self._report(event)

    def log(self) -> str:
        """The whole log, as a file has it."""
        return "".join(f"{line}\n" for line in self._lines)

    def forget(self) -> None:
        """Remove the checkpoints."""
        self._checkpoints.clear()

    def resume(self, stepper: Stepper) -> int:
        """Put the stepper where the newest checkpoint left off; returns the steps that are done."""
        checkpoint = self._checkpoints.newest(self._say) or self._policy.start
        if checkpoint is None:
            return 0
        stepper.load(checkpoint)
        self._lines[:] = checkpoint.log()
        self.report({"event": "resume", "step": checkpoint.step})
        self._say(f"resumed after step {checkpoint.step} from {checkpoint.path}")
        return checkpoint.step

    def after(self, step: int, stepper: Stepper) -> None:
        """At the end of a step: write a checkpoint if it is time to, and stop if that was asked for.

        Raises:
            PreemptedError: a signal came.
        """
        due = stepper.ranks.first and time.monotonic() - self._saved >= self._policy.every
        stop = self._policy.preemption.pending
        # One decision for all ranks: each has a clock of its own, and signals reach them one after another.
        wish = stepper.ranks.highest(_STOP if stop else _SAVE if due else 0)
        if wish:
            self._save(step, stepper)
        if wish == _STOP:
            raise PreemptedError(f"stopped by {stop or 'a signal'} after step {step}; the same command goes on")

    def _save(self, step: int, stepper: Stepper) -> None:
        stepper.look()  # or a ruined state would be kept
        try:
            self._checkpoints.save(step, stepper.state.save, run=self._run, progress=stepper.progress(), log=self.log())
        except StoreError as error:
            self._say(f"no checkpoint of step {step}: {error}. The run goes on, and the checkpoint before it is kept")
        self._saved = time.monotonic()
