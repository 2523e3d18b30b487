"""Checkpoints of a run in progress: sealed folders <store>/partial/<key>/step-<N>/; the newest valid one counts.

Resuming is exact: a resumed run gives bit by bit the result of an uninterrupted one. So neither the interval of
checkpoints nor an interruption is part of a run's key. Exactness needs all state that steps depend on: weights,
buffers, moments of the optimizer and random numbers (`train.resume.state`), and the micro-batch that was found to fit
memory (`Checkpoint.progress`), which determines the order of sums. Learning rate and batches are functions of the step.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopverify.errors import InputError
from train.machine.distributed import Ranks
from train.store import Say, manifest
from train.store.atomic_folders import examine, seal_into, set_aside, system_errors, writing
from train.store.manifest import MANIFEST, canonical, sha256

__all__ = ["Checkpoint", "Checkpoints", "open_checkpoint"]

_LOG = "metrics.jsonl"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A valid checkpoint, whose files match its manifest."""

    path: Path
    run: Mapping[str, Any]
    """The determinants of its run (`RunSpec.determinants`)."""
    step: int
    """Number of finished steps."""
    ranks: int
    """Number of processes that wrote it."""
    progress: Mapping[str, Any]
    """Further state of the step loop (`Stepper.progress`)."""
    digest: str
    """SHA-256 (hex) of everything on which a run that starts here depends: all but the log, which contains times."""

    def require_of(self, run: Mapping[str, Any]) -> None:
        """Check that the run may start from here: it differs from the checkpoint's run in its execution only.

        Raises:
            InputError: it differs in more; the message names the first difference.
        """
        apart = {"execution", "continued"}
        for name in sorted((self.run.keys() | run.keys()) - apart):
            mine, wanted = self.run.get(name), run.get(name)
            if canonical(mine) != canonical(wanted):
                raise InputError(
                    f"{self.path} is a checkpoint of another run: its {name} is {mine!r}; expected {wanted!r}, that of "
                    "the run to be continued"
                )

    def log(self) -> list[str]:
        """The lines of the run's log up to this step."""
        return (self.path / _LOG).read_text(encoding="utf-8").splitlines()


class Checkpoints:
    """The last `keep` checkpoints of one run, written by all ranks together and managed by the first."""

    def __init__(self, root: Path, key: str, *, ranks: Ranks, keep: int = 2) -> None:
        """
        Args:
            root: folder of the store.
            key: key of the run.

        Raises:
            InputError: keep < 1.
        """
        if keep < 1:
            raise InputError(f"keep is {keep}; expected at least one checkpoint to resume from")
        self.folder = root / "partial" / key
        self._root, self._key, self._ranks, self._keep = root, key, ranks, keep

    def save(
        self, step: int, fill: Callable[[Path], None], *, run: Mapping[str, Any], progress: Mapping[str, Any], log: str
    ) -> None:
        """Write the checkpoint of a step: `fill` writes each rank's part into a folder, which appears by one rename.

        Raises:
            StoreError: it cannot be written; earlier checkpoints are unchanged.
        """
        ranks, content = self._ranks, {"key": self._key, "run": run, "step": step, "progress": progress}
        with ExitStack() as stack:

            def begin() -> str:
                own = stack.enter_context(writing(self._root / ".temporary", f"{self._key}-step-{step}"))
                (own / _LOG).write_text(log, encoding="utf-8")
                return str(own)

            def part() -> None:
                with system_errors(own, "write"):
                    fill(own)

            def end() -> None:
                seal_into(own, self.folder / f"step-{step}", {**content, "ranks": ranks.count})
                self._prune()

            own = Path(ranks.broadcast(ranks.together(lambda: begin() if ranks.first else "")))
            ranks.together(part)
            ranks.together(lambda: end() if ranks.first else None)

    def newest(self, say: Say) -> Checkpoint | None:
        """The newest valid checkpoint, or None; corrupt ones are reported and moved to corrupt/."""
        path = self._ranks.broadcast(self._ranks.together(lambda: self._newest(say) if self._ranks.first else None))
        return (
            None if path is None else _checkpoint(Path(path), manifest.read(Path(path)))
        )  # just verified by the first rank

    def clear(self) -> None:
        """Remove all checkpoints of the run."""
        if self._ranks.first:
            shutil.rmtree(self.folder, ignore_errors=True)

    def steps(self) -> list[int]:
        """The steps of the existing checkpoints, ascending."""
        with system_errors(self.folder, "read"):
            names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"step-(\d+)", name)))

    def _newest(self, say: Say) -> str | None:
        for step in reversed(self.steps()):
            path = self.folder / f"step-{step}"
            record, problems = examine(path)
            if not problems and (record["key"], record["step"]) != (self._key, step):
                problems = [f"{MANIFEST} is that of step {record['step']} of run {record['key']}"]
            if not problems:
                return str(path)
            moved = set_aside(path, self._root / "corrupt", f"{self._key}-step-{step}")
            say(f"the checkpoint {path} is corrupt: {'; '.join(problems)}. Moved to {moved}; the previous one is used")
        return None

    def _prune(self) -> None:
        for step in self.steps()[: -self._keep]:
            shutil.rmtree(self.folder / f"step-{step}", ignore_errors=True)


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder, with every byte verified.

    Raises:
        InputError: there is no checkpoint, or it is corrupt.
    """
    record, problems = examine(path)
    if not problems and not {"run", "step", "ranks", "progress"} <= record.keys():
        problems = [f"{MANIFEST} is not that of a checkpoint"]
    if problems:
        raise InputError(
            f"{path} is not a valid checkpoint: {'; '.join(problems)}; give a folder partial/<key>/step-<N>"
        )
    return _checkpoint(path, record)


def _checkpoint(path: Path, record: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(
        path=path,
        run=record["run"],
        step=record["step"],
        ranks=record["ranks"],
        progress=record["progress"],
        digest=sha256(
            canonical({**record, "files": {name: entry for name, entry in record["files"].items() if name != _LOG}})
        ),
    )
