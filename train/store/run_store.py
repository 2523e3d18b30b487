"""The run store: results stored under the spec that determines them, complete or absent, for concurrent processes.

Layout below the root:
    runs/<key>/             one run: the files of its writer and, written last, manifest.json
    partial/<key>/          checkpoints of a run in progress (`train.resume.checkpoint`)
    corrupt/<key>-<n>/      runs and checkpoints that did not match their manifest, moved here
    .temporary/, .locks/    folders that are being written, and one lock file per key

A run appears by one rename: a process that is killed at any moment leaves a complete run or none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from loopverify.errors import InputError
from train.store import manifest
from train.store.atomic_folders import StoreError, examine, seal_into, set_aside, system_errors, writing
from train.store.manifest import MANIFEST, canonical

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CorruptRunError", "RunStore", "Say", "StoredRun"]

Say = Callable[[str], None]
"""Shows a message to the user."""
_KEY_LENGTH = 16


class CorruptRunError(StoreError):
    """A stored run does not match its manifest. It must not be used; `RunStore.discard` moves it out of the way."""

    def __init__(self, key: str, path: Path, problems: list[str]) -> None:
        super().__init__(f"the stored run {path} is corrupt: {'; '.join(problems)}")
        self.key, self.path, self.problems = key, path, tuple(problems)


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A complete run whose files match its manifest."""

    key: str
    path: Path
    spec: Mapping[str, Any]
    """Everything that determines the result, as JSON values."""
    facts: Mapping[str, Any]
    """Circumstances that are not part of the key (versions, kind of device, ...), as given by its writer."""
    files: tuple[str, ...]
    """Sorted paths of its files, relative to `path`, with '/'."""

    def json(self, name: str) -> Any:
        """The content of a JSON file of the run."""
        return json.loads(self._file(name).read_text(encoding="utf-8"))

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of a safetensors file of the run, by name, on the CPU."""
        from safetensors.torch import load_file  # imported here, because reading a store needs no torch

        # Cloned: the loaded tensors are views of the mapped file, and later changes of the file would reach them.
        return {name: tensor.clone() for name, tensor in load_file(self._file(name)).items()}

    def _file(self, name: str) -> Path:
        if name not in self.files:
            raise InputError(f"run {self.key} has no file {name!r}; it has: {', '.join(self.files)}")
        return self.path / name


class RunStore:
    """Runs by the content of their specs, below the folder `root`, which is created at the first write."""

    def __init__(self, root: Path | str, *, folder: str = "runs") -> None:
        """
        Args:
            root: folder of the store.
            folder: its subfolder for complete runs.

        Raises:
            StoreError: `root` or one of its parents exists and is not a folder.
        """
        self.root = Path(root)
        self._runs, self._corrupt = self.root / folder, self.root / "corrupt"
        self._temporary, self._locks = self.root / ".temporary", self.root / ".locks"
        nearest = next((p for p in (self.root, *self.root.absolute().parents) if os.path.lexists(p)), self.root)
        if os.path.lexists(nearest) and not os.path.isdir(nearest):
            raise StoreError(f"no store can be at {root}: {nearest} is not a folder; choose another place")

    def key(self, spec: Mapping[str, Any]) -> str:
        """16 hex digits of the SHA-256 of the spec as canonical JSON.

        Raises:
            InputError: the spec is not JSON.
        """
        return manifest.sha256(canonical(spec, "spec"))[:_KEY_LENGTH]

    def get(self, spec: Mapping[str, Any]) -> StoredRun | None:
        """The run of a spec, with every byte verified; None if it is not stored.

        Raises:
            CorruptRunError: it does not match its manifest.
            StoreError: it cannot be read.
        """
        key = self.key(spec)
        if not os.path.lexists(self._runs / key):
            return None
        run = self._verified(key)
        if canonical(run.spec) != canonical(spec):
            raise CorruptRunError(key, run.path, [f"{MANIFEST} is that of another spec"])
        return run

    def find(self, spec: Mapping[str, Any], say: Say, consequence: str) -> StoredRun | None:
        """As `get`, but a corrupt run is moved aside, reported with the `consequence`, and treated as missing."""
        try:
            return self.get(spec)
        except CorruptRunError as error:
            say(f"{error}. Moved to {self.discard(error.key)}; {consequence}")
            return None

    def peek(self, spec: Mapping[str, Any]) -> StoredRun | None:
        """As `get`, but None for a corrupt run, which stays: another process that has the lock may be replacing it."""
        try:
            return self.get(spec)
        except CorruptRunError:
            return None

    def ensure(self, spec: Mapping[str, Any], make: Callable[[], object], say: Say, consequence: str) -> StoredRun:
        """The run of a spec. If it is missing or corrupt (see `find`), `make` stores it while other processes wait."""
        found = self.peek(spec)
        if found is None:
            with self.lock(spec):
                found = self.find(spec, say, consequence)
                if found is None:
                    make()
                    found = self.get(spec)
        assert found is not None
        return found

    def runs(self, on_corrupt: Callable[[CorruptRunError], None] | None = None) -> Iterator[StoredRun]:
        """Every run, sorted by key, verified as by `get`; a corrupt one is raised, or passed to `on_corrupt` and
        skipped."""
        with system_errors(self._runs, "read"):
            keys = sorted(os.listdir(self._runs)) if self._runs.is_dir() else []
        for key in keys:
            try:
                run = self._verified(key)
            except CorruptRunError as error:
                if on_corrupt is None:
                    raise
                on_corrupt(error)
            else:
                yield run

    def discard(self, key: str) -> Path:
        """Move a corrupt run to corrupt/, so that it can be made again; returns its new path."""
        return set_aside(self._runs / key, self._corrupt, key)

    @contextmanager
    def lock(self, spec: Mapping[str, Any]) -> Iterator[None]:
        """Hold the lock of a spec for the length of a block; other processes and threads wait for it.

        The lock is released when its process dies, and reentrant within a thread.
        """
        with system_errors(self._locks, "write"):
            self._locks.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self._locks / f"{self.key(spec)}.lock", is_singleton=True)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def create(self, spec: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> Iterator[Path]:
        """A new folder for the files of a run; at the end of the block it becomes the run of `spec`.

        After an exception the folder is removed. If another process has stored the same run meanwhile, that run stays
        and this one is dropped: the specs, which determine the results, are equal.

        Raises:
            InputError: the spec or the facts are not JSON.
            StoreError: the folder cannot be created or filled (not writable, disk full).
        """
        content = {"key": self.key(spec), "spec": spec, "facts": facts or {}}
        canonical(content["facts"], "record of facts")  # raises now rather than after the work
        with writing(self._temporary, self.key(spec)) as own:
            yield own
            seal_into(own, self._runs / self.key(spec), content)

    def _verified(self, key: str) -> StoredRun:
        path = self._runs / key
        record, problems = examine(path)
        if record and record["key"] != key:
            problems.append(f"{MANIFEST} is that of run {record['key']}")
        if problems:
            raise CorruptRunError(key, path, problems)
        files = tuple(sorted(record["files"]))
        return StoredRun(key=key, path=path, spec=record["spec"], facts=record["facts"], files=files)
