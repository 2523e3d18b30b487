"""What a study's claims came to: runs gathered, claims judged, one report in three views."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from loopverify import report
from loopverify.claims import Claim, Evidence, Run, conditions_of, evaluate
from loopverify.errors import LoopverifyError
from train.fleet import Progress
from train.study import Study, histories, results

__all__ = ["Verdicts"]


class Verdicts:
    """The claims of one `pytest train` and the runs they are judged on."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.runs: list[Run] = []
        self.judged: dict[str, Claim] = {}
        self._histories: dict[str, list[dict[str, float]]] = {}
        self._seconds = 0.0

    def train(
        self, claims: Iterable[Claim], progress: Progress, workers: int | None, say: Callable[[str], None]
    ) -> None:
        """Train what the claims need and is missing, and gather all of it.

        Raises:
            LoopverifyError: naming every run that failed; those that ended are in the store.
        """
        conditions = conditions_of(claims)
        begun = time.perf_counter()
        failures = self.study.train(conditions, progress=progress, workers=workers, say=say)
        self._seconds = time.perf_counter() - begun
        stored = list(self.study.stored(conditions, say).values())
        self.runs, self._histories = results(stored), histories(stored)
        if failures:
            told = "\n".join(f"  {spec.label}: {failure}" for spec, failure in failures.items())
            raise LoopverifyError(f"{len(failures)} of the runs failed; the others are stored:\n{told}")

    def judge(self, claim: Claim) -> Evidence:
        """Evidence of one claim, which the report then shows too."""
        self.judged[claim.id] = claim
        return evaluate(claim, self.runs)

    def report(self) -> tuple[str, tuple[Path, Path]]:
        """The text for a terminal, and the files of the report."""
        made = report.build(
            self.runs,
            self.judged.values(),
            histories=self._histories,
            facts={
                "seeds a condition": str(self.study.seeds),
                "store": str(self.study.store.root),
                "time in training by this command": f"{self._seconds:.0f} s",
            },
        )
        return made.to_text(), report.write(made, self.study.store.root / "report")
