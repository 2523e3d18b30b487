"""Checkpointer: the log of a run in training, and the times of its checkpoints."""

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
    """When checkpoints are written, how many are kept, and what stops a run."""

    every: float = 60.0
    """Seconds between checkpoints, at the end of a step; 0: after every step."""
    keep: int = 2
    """Largest number of checkpoints; with more than one, a run survives damage to the newest."""
    preemption: Preemption = field(default_factory=Preemption)
    start: Checkpoint | None = None
    """Start of a run without a checkpoint of its own; None: the first step."""

    def __post_init__(self) -> None:
        if not self.every >= 0:
            raise InputError(f"checkpoint-every is {self.every}; expected seconds >= 0")


class Checkpointer:
    """Writes the log and the checkpoints of one run, so that the run can be killed at any moment."""

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
        """Add a line to the log without reporting it."""
        self._lines.append(json.dumps(event))

    def report(self, event: Event) -> None:
        """Add a line to the log and report the event."""
        self.note(event)
        self._report(event)

    def log(self) -> str:
        """The whole log as the text of a file, one JSON event per line."""
        return "".join(f"{line}\n" for line in self._lines)

    def forget(self) -> None:
        """Remove the checkpoints."""
        self._checkpoints.clear()

    def resume(self, stepper: Stepper) -> int:
        """Load the newest checkpoint into the stepper; returns the number of finished steps."""
        checkpoint = self._checkpoints.newest(self._say) or self._policy.start
        if checkpoint is None:
            return 0
        stepper.load(checkpoint)
        self._lines[:] = checkpoint.log()
        self.report({"event": "resume", "step": checkpoint.step})
        self._say(f"resumed after step {checkpoint.step} from {checkpoint.path}")
        return checkpoint.step

    def after(self, step: int, stepper: Stepper) -> None:
        """After a step: write a checkpoint if one is due, and stop the run if a signal has arrived.

        Raises:
            PreemptedError: a signal has arrived.
        """
        due = stepper.ranks.first and time.monotonic() - self._saved >= self._policy.every
        stop = self._policy.preemption.pending
        # All ranks must decide alike, or some would wait in the collective save for ever. Their clocks differ and
        # signals reach them at different steps, so the strongest wish of any rank decides.
        wish = stepper.ranks.highest(_STOP if stop else _SAVE if due else 0)
        if wish:
            self._save(step, stepper)
        if wish == _STOP:
            raise PreemptedError(f"stopped by {stop or 'a signal'} after step {step}; the same command resumes it")

    def _save(self, step: int, stepper: Stepper) -> None:
        stepper.check_losses()  # otherwise a diverged state could become the newest checkpoint
        try:
            self._checkpoints.save(step, stepper.state.save, run=self._run, progress=stepper.progress(), log=self.log())
        except StoreError as error:
            self._say(f"no checkpoint of step {step}: {error}. Training continues, and the previous checkpoint is kept")
        self._saved = time.monotonic()
