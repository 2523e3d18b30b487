"""A study: conditions of one preset over several seeds. Missing runs are trained; claims are judged on the runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loopverify.errors import InputError
from loopverify.stats import can_reach, seeds_needed
from train.engine.open import open_examples
from train.launch.fleet import Progress, ensure_all
from train.launch.run import find, history
from train.specification import Preset, RunSpec
from train.store import RunStore, Say, StoredRun

__all__ = ["Study", "histories"]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Seeds 0..seeds-1 of conditions of one preset, in one store."""

    preset: Preset
    seeds: int
    store: RunStore
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}; expected an integer >= 1")

    def require_evidence(self, alpha: float) -> None:
        """Check, before anything is trained, that the seeds suffice for a rank test at level `alpha`.

        Raises:
            InputError: they do not; the message says how many suffice.
        """
        if not can_reach(alpha, self.seeds, self.seeds):
            raise InputError(
                f"evidence required of {self.seeds} seed{'s' if self.seeds > 1 else ''} per condition: no rank test of "
                f"{self.seeds} against {self.seeds} can reach alpha = {alpha:g}; use --seeds {seeds_needed(alpha)} or "
                "more, or omit --evidence to judge by the effect only"
            )

    def covers(self, condition: str) -> bool:
        """Whether a condition is one of this preset: conditions on a task begin with its name, those on text do not."""
        task, _, _ = condition.rpartition(":")
        return task == (self.preset.task or "")

    def specs(self, conditions: Iterable[str]) -> list[RunSpec]:
        """The specs of `conditions` (such as 'per_loop/rmsnorm'), the longest-running conditions first."""
        named = sorted(set(conditions), key=lambda condition: (not condition.startswith("per_loop"), condition))
        return [
            RunSpec.of_condition(self.preset, condition, seed=seed, device=self.device)
            for seed in range(self.seeds)
            for condition in named
        ]

    def train(
        self,
        conditions: Iterable[str],
        *,
        progress: Progress | None = None,
        workers: int | None = None,
        say: Say = print,
    ) -> dict[RunSpec, str]:
        """Train the runs that are missing; returns failure messages by spec."""
        return ensure_all(self.specs(conditions), self.store, workers=workers, progress=progress, say=say)

    def stored(self, conditions: Iterable[str], say: Say = print) -> dict[RunSpec, StoredRun]:
        """The runs of `conditions` that are in the store."""
        specs = self.specs(conditions)
        if not specs:
            return {}
        examples = open_examples(specs[0], self.store)
        found = {spec: find(spec, self.store, examples, say) for spec in specs}
        return {spec: stored for spec, stored in found.items() if stored is not None}


def histories(stored: Iterable[StoredRun]) -> dict[str, list[dict[str, float]]]:
    """The evaluations during training, by store key."""
    return {run.key: [dict(event) for event in history(run)] for run in stored}
