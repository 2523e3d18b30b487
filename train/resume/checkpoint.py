"""Checkpoints of a run in progress: <store>/partial/<key>/step-<N>/, each a sealed folder; the newest whole one counts.

Resuming is exact, so neither how often checkpoints are written nor whether a run was interrupted is part of its key.
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
    """A whole checkpoint: its files are what its manifest says."""

    path: Path
    run: Mapping[str, Any]
    """What determines the run it is of (`RunSpec.determinants`)."""
    step: int
    """Steps done."""
    ranks: int
    """How many processes wrote it."""
    progress: Mapping[str, Any]
    """What else the step loop goes on with."""
    digest: str
    """SHA-256 (hex) of what a run that goes on from here depends on: all but the log, which tells times."""

    def require_of(self, run: Mapping[str, Any]) -> None:
        """Refuse to go on from here with a run that differs in more than its execution.

        Raises:
            InputError: naming what differs.
        """
        apart = {"execution", "continued"}
        for name in sorted((self.run.keys() | run.keys()) - apart):
            mine, wanted = self.run.get(name), run.get(name)
            if canonical(mine) != canonical(wanted):
                raise InputError(
                    f"{self.path} is a checkpoint of another run: its {name} is {mine!r}; expected {wanted!r}, that of "
                    "the run to go on with"
                )

    def log(self) -> list[str]:
        """The lines of the run's log up to here."""
        return (self.path / _LOG).read_text(encoding="utf-8").splitlines()


class Checkpoints:
    """Those of one run, the last `keep` of them; written by all ranks together, looked after by the first."""

    def __init__(self, root: Path, key: str, *, ranks: Ranks, keep: int = 2) -> None:
        """
        Args:
            root: of the store.
            key: of the run.

        Raises:
            InputError: none are to be kept.
        """
        if keep < 1:
            raise InputError(f"keep is {keep}; expected at least one checkpoint to resume from")
        self.folder = root / "partial" / key
        self._root, self._key, self._ranks, self._keep = root, key, ranks, keep

    def save(
        self, step: int, fill: Callable[[Path], None], *, run: Mapping[str, Any], progress: Mapping[str, Any], log: str
    ) -> None:
        """Write the checkpoint of a step: `fill` writes each rank's part below a folder, which then appears at once.

        Raises:
            StoreError: it cannot be written; what was there before is untouched.
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

            own = Path(ranks.told(ranks.together(lambda: begin() if ranks.first else "")))
            ranks.together(part)
            ranks.together(lambda: end() if ranks.first else None)

    def newest(self, say: Say) -> Checkpoint | None:
        """The last whole checkpoint; a corrupt one is named, moved aside, and the one before it looked at."""
        path = self._ranks.told(self._ranks.together(lambda: self._newest(say) if self._ranks.first else None))
        return None if path is None else _checkpoint(Path(path), manifest.read(Path(path)))  # verified a moment ago

    def clear(self) -> None:
        """Remove them all: the run is stored."""
        if self._ranks.first:
            shutil.rmtree(self.folder, ignore_errors=True)

    def steps(self) -> list[int]:
        """The steps of those that are there, ascending."""
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
            say(f"the checkpoint {path} is corrupt: {'; '.join(problems)}. Moved to {moved}; the one before it counts")
        return None

    def _prune(self) -> None:
        for step in self.steps()[: -self._keep]:
            shutil.rmtree(self.folder / f"step-{step}", ignore_errors=True)


def open_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint at a place of its own, every byte of it verified.

    Raises:
        InputError: there is none, or it is corrupt.
    """
    record, problems = examine(path)
    if not problems and not {"run", "step", "ranks", "progress"} <= record.keys():
        problems = [f"{MANIFEST} is not that of a checkpoint"]
    if problems:
        raise InputError(f"{path} is no whole checkpoint: {'; '.join(problems)}; give a folder partial/<key>/step-<N>")
    return _checkpoint(path, record)


def _checkpoint(path: Path, record: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(
        path=path,
        run=record["run"],
        step=record["step"],
        ranks=record["ranks"],
        progress=record["progress"],
        digest=sha256(canonical({**record, "files": {n: told for n, told in record["files"].items() if n != _LOG}})),
    )
