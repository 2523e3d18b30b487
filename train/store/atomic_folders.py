"""Sealed folders: written in a temporary place, synced, checksummed and renamed into place, so complete or absent.

The name of a temporary folder contains the host and the process that write it, so that folders of dead processes can be
recognized and removed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loopverify.errors import LoopverifyError
from train.store import manifest

__all__ = ["FORMAT", "StoreError", "examine", "seal_into", "set_aside", "sweep", "system_errors", "writing"]

FORMAT = 1
"""Format version of the manifests."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)


class StoreError(LoopverifyError):
    """The store cannot be read or written."""


@contextmanager
def writing(temporary: Path, name: str) -> Iterator[Path]:
    """A new folder below `temporary`, removed at the end of the block unless `seal_into` moved it.

    Raises:
        StoreError: it cannot be created, or the disk is full. Other errors of the block are passed on.
    """
    with system_errors(temporary, "write"):
        temporary.mkdir(parents=True, exist_ok=True)
        sweep(temporary)
        own = temporary / f"{name}-{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        own.mkdir()
    try:
        with system_errors(own, "write", only=_NO_SPACE):
            yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def seal_into(own: Path, place: Path, content: Mapping[str, Any]) -> None:
    """Seal a folder with the manifest `content` and rename it to `place`; a folder that is already there stays.

    Raises:
        StoreError: it cannot be written.
    """
    with system_errors(own, "write"):
        manifest.seal(own, {"format": FORMAT, **content})
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(own, place)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        manifest.sync(place.parent)


def examine(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The manifest of a sealed folder and a list of problems; ({}, [problem]) if there is no valid manifest.

    Raises:
        StoreError: another version wrote it, or the system cannot read it.
    """
    with system_errors(path, "read"):
        try:
            record = manifest.read(path)
        except ValueError as error:
            return {}, [str(error)]
        if record.get("format") != FORMAT:
            raise StoreError(
                f"{path} has format {record.get('format')!r}; expected {FORMAT}. "
                "Another version of this library wrote it: choose another place for the store"
            )
        found = ((name, manifest.problem(path / name, recorded)) for name, recorded in record["files"].items())
        return record, [f"{name} {problem}" for name, problem in found if problem is not None]


def set_aside(path: Path, folder: Path, name: str) -> Path:
    """Move a folder to `folder`/<name>-<n>; returns the new path, even if another process has just moved it."""
    number = 1
    with system_errors(folder, "write"):
        folder.mkdir(parents=True, exist_ok=True)
        while os.path.lexists(aside := folder / f"{name}-{number}"):
            number += 1
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            if number == 1:
                raise
            return folder / f"{name}-{number - 1}"
    return aside


def sweep(temporary: Path) -> None:
    """Remove the temporary folders of dead processes of this host."""
    for left in temporary.iterdir():
        match left.name.rsplit("-", 3):
            case [_, host, pid, _] if host == _host() and pid.isdigit() and not _alive(int(pid)):
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def system_errors(path: Path, what: str, only: tuple[int, ...] | None = None) -> Iterator[None]:
    """Raise system errors (with the numbers `only`, if given) as a StoreError that names the path and the remedy."""
    try:
        yield
    except Exception as error:
        number = _errno(error)
        if number is None or (only is not None and number not in only):
            raise
        remedy = "check the path and its permissions, or choose another place for the store"
        if number in _NO_SPACE:
            remedy = "free some space or choose another place for the store; nothing half-written was kept"
        place = getattr(error, "filename", None) or path
        raise StoreError(f"cannot {what} the store at {place}: {os.strerror(number)}; {remedy}") from error


def _errno(error: Exception) -> int | None:
    """The errno behind an exception, or None."""
    if isinstance(error, OSError):
        return error.errno or 0
    # safetensors and torch.distributed.checkpoint raise errors of their own, whose text quotes the OSError.
    quoted = re.search(r"\(os error (\d+)\)|\[Errno (\d+)\]", str(error))
    return int(quoted[1] or quoted[2]) if quoted else None


def _host() -> str:
    """The host and the namespace of process ids: containers on one host number their processes independently."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return f"{re.sub('[^A-Za-z0-9.]', '_', socket.gethostname())}.{namespace}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it exists but belongs to another user
        return True
    return True
