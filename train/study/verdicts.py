"""Verdicts: the runs of a study, the evidence of its claims, and one report of both in three formats."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from loopverify import report
from loopverify.claims import Claim, Evidence, Run, conditions_of, evaluate
from train.launch.fleet import Progress
from train.specification import PRESETS, RunSpec
from train.store import Say
from train.study.expected_shortfalls import EXPECTED_SHORTFALLS
from train.study.measure import measured, wanted_by
from train.study.study import Study, histories

__all__ = ["Outcome", "Verdicts"]

Outcome = Literal["passed", "failed", "xfailed", "skipped"]


class Verdicts:
    """The claims of one `pytest train` and the runs on which they are judged."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.runs: list[Run] = []
        self.judged: dict[str, Claim] = {}
        self.failures: dict[RunSpec, str] = {}
        """Failure messages of the runs that did not finish."""
        self._histories: dict[str, list[dict[str, float]]] = {}
        self._seconds = 0.0

    def train(self, claims: Iterable[Claim], progress: Progress, workers: int | None, say: Say) -> None:
        """Train and measure what the claims on this study need and the store lacks, and load all of it.

        Claims that trained models alone cannot decide (`Claim.needs`) require no runs. A run that fails also fails the
        claims on its condition, and no others.
        """
        decidable = [claim for claim in claims if self.covers(claim) and not claim.needs]
        conditions = conditions_of(decidable)
        begun = time.perf_counter()
        self.failures = self.study.train(conditions, progress=progress, workers=workers, say=say)
        self._seconds = time.perf_counter() - begun
        stored = self.study.stored(conditions, say)
        self.runs = measured(stored, wanted_by(decidable), self.study.store, say)
        self._histories = histories(stored.values())

    def covers(self, claim: Claim) -> bool:
        """Whether all conditions of a claim belong to this study."""
        return all(map(self.study.covers, claim.conditions))

    def judge(self, claim: Claim) -> Evidence:
        """The evidence of one claim, which the report then contains."""
        self.judged[claim.id] = claim
        return evaluate(claim, self.runs)

    def outcome(self, evidence: Evidence) -> tuple[Outcome, str]:
        """The outcome of a test for some evidence, and the message.

        Expected shortfalls apply to the unchanged preset only. If the runs of some seeds failed, the claim fails, even
        if it holds for the remaining seeds.
        """
        failed = [f"{spec.label}: {why}" for spec, why in self.failures.items() if spec.condition in evidence.seeds]
        if failed:
            return "failed", "runs that the claim needs failed; the others are stored. " + "; ".join(failed)
        preset = self.study.preset
        listed = EXPECTED_SHORTFALLS.get(preset.name, {}) if PRESETS.get(preset.name) == preset else {}
        expected = listed.get(evidence.claim)
        if evidence.verdict == "not run":
            return "skipped", f"not run: {evidence.basis}"
        if evidence.verdict != "held":
            return ("failed", str(evidence)) if expected is None else ("xfailed", expected.message(evidence))
        if expected is not None and expected.verdict == "contradicted" and self.study.seeds >= expected.seeds:
            return (
                "failed",
                f"held, but expected to be {expected.verdict}: remove it from train/study/expected_shortfalls.py. "
                f"{evidence}",
            )
        return "passed", ""

    def report(self) -> tuple[str, tuple[Path, ...]]:
        """Writes the report; returns its text for a terminal, and its files."""
        made = report.build(
            self.runs,
            self.judged.values(),
            histories=self._histories,
            facts={
                "seeds per condition": str(self.study.seeds),
                "time in training by this command": f"{self._seconds:.0f} s",
                **{f"failed: {spec.label}": _recorded(why) for spec, why in self.failures.items()},
            },
        )
        task = self.study.preset.task
        folder = "report" if task is None else f"report-{task}"
        return made.to_text(), report.write(made, self.study.store.root / folder)


def _recorded(failure: str) -> str:
    """A failure as the report states it. Reports are published, and the full message may contain local paths."""
    return "the loss diverged" if "diverged" in failure else "the run did not finish; the terminal showed why"
