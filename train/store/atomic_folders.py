"""Sealed folders: written aside, brought to disk, checksummed, and renamed into place; so whole or not there.

What is written aside carries the host and the process that write it, so that the leftovers of a dead process are known.
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

__all__ = ["FORMAT", "StoreError", "asking", "examine", "seal_into", "set_aside", "sweep", "writing"]

FORMAT = 1
"""Of the manifests that are written and read."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)


class StoreError(LoopverifyError):
    """The store cannot be read or written where it was asked for."""


@contextmanager
def writing(temporary: Path, name: str) -> Iterator[Path]:
    """A new folder below `temporary`, gone at the end of the block unless `seal_into` moved it.

    Raises:
        StoreError: it cannot be made, or the disk is full; other errors of the block are its own.
    """
    with asking(temporary, "write"):
        temporary.mkdir(parents=True, exist_ok=True)
        sweep(temporary)
        own = temporary / f"{name}-{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        own.mkdir()
    try:
        with asking(own, "write", only=_NO_SPACE):
            yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def seal_into(own: Path, place: Path, content: Mapping[str, Any]) -> None:
    """Seal a folder with the manifest `content` and make it `place` by one rename; what is already there stays.

    Raises:
        StoreError: it cannot be written.
    """
    with asking(own, "write"):
        manifest.seal(own, {"format": FORMAT, **content})
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(own, place)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        manifest.sync(place.parent)


def examine(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The manifest of a sealed folder and all that differs from it; ({}, one problem) where it cannot be read as such.

    Raises:
        StoreError: another version wrote it, or the system refuses to read it.
    """
    with asking(path, "read"):
        try:
            record = manifest.read(path)
        except ValueError as error:
            return {}, [str(error)]
        if record.get("format") != FORMAT:
            raise StoreError(
                f"{path} has format {record.get('format')!r}; expected {FORMAT}. "
                "Another version of this library wrote it: choose another place for the store"
            )
        found = ((name, manifest.problem(path / name, told)) for name, told in record["files"].items())
        return record, [f"{name} {problem}" for name, problem in found if problem is not None]


def set_aside(path: Path, folder: Path, name: str) -> Path:
    """Move a folder below `folder` as <name>-<n>; returns where it now lies, also if another process was faster."""
    number = 1
    with asking(folder, "write"):
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
    """Remove what processes of this host were writing when they died."""
    for left in temporary.iterdir():
        match left.name.rsplit("-", 3):
            case [_, host, pid, _] if host == _host() and pid.isdigit() and not _alive(int(pid)):
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def asking(path: Path, what: str, only: tuple[int, ...] | None = None) -> Iterator[None]:
    """Errors of the system (of the kinds `only`, if given) as a StoreError that says where and what to do."""
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
    """The number of the system's error behind an exception, if there is one."""
    if isinstance(error, OSError):
        return error.errno or 0
    # Those of safetensors and of torch.distributed.checkpoint are no OSErrors, but quote them.
    told = re.search(r"\(os error (\d+)\)|\[Errno (\d+)\]", str(error))
    return int(told[1] or told[2]) if told else None


def _host() -> str:
    """This host, and the namespace in which its process ids count: a container numbers its own."""
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
    except OSError:  # it is there, but another user's
        return True
    return True
