"""Manifests: sizes and checksums of the files of a folder, which show whether it is complete and unchanged."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopverify.errors import InputError

__all__ = ["MANIFEST", "canonical", "problem", "read", "seal", "sha256", "sync"]

MANIFEST = "manifest.json"


def canonical(value: object, what: str = "value") -> str:
    """Canonical JSON, equal for equal values: keys sorted, no spaces.

    Raises:
        InputError: the value is not JSON: it has other types, nan or infinities.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the {what} is not JSON: {error}; give strings, finite numbers, lists and mappings"
        ) from error


def sha256(text: str) -> str:
    """SHA-256 (hex) of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def seal(folder: Path, content: Mapping[str, Any]) -> None:
    """Sync every file of a folder, then write the manifest: `content`, and 'files' with name, size and SHA-256 of each.

    Raises:
        InputError: the folder already has a manifest.
    """
    if (folder / MANIFEST).exists():
        raise InputError(f"a run contains a file {MANIFEST!r}, a reserved name; rename the file")
    paths = sorted(folder.rglob("*"))
    files = {}
    for path in paths:
        if path.is_file():
            path.chmod(
                folder.stat().st_mode & 0o666
            )  # safetensors writes files that only the owner can read; a store may be shared
            files[path.relative_to(folder).as_posix()] = _measure(path)
        sync(path)
    record = {**content, "files": files}
    record["sha256"] = sha256(canonical(record))
    (folder / MANIFEST).write_text(_written(record), encoding="utf-8")
    sync(folder / MANIFEST)
    sync(folder)


def read(folder: Path) -> dict[str, Any]:
    """The record that `seal` wrote.

    Raises:
        ValueError: it is missing or was changed; the message says how.
    """
    try:
        text = (folder / MANIFEST).read_bytes()
        record = json.loads(text)
        changed = text != _written(record).encode()  # white space counts: a flipped bit there means damaged storage
        recorded = record.pop("sha256", None) if isinstance(record, dict) else None
        own = sha256(canonical(record))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{MANIFEST} is missing") from None
    except ValueError as error:
        raise ValueError(f"{MANIFEST} is not JSON ({error})") from error
    if changed or recorded != own:
        raise ValueError(f"{MANIFEST} was changed: it does not match its own sha256")
    return dict(record)


def problem(path: Path, recorded: Mapping[str, Any]) -> str | None:
    """How a file differs from its entry in the manifest, or None."""
    if not path.is_file():
        return "is missing"
    if (size := path.stat().st_size) != recorded["bytes"]:
        return f"has {size} bytes instead of {recorded['bytes']}"
    return None if _measure(path) == recorded else "was changed: it has the right size and another sha256"


def _written(record: object) -> str:
    return json.dumps(record, indent=1)


def sync(path: Path) -> None:
    """Return once a file, or the entries of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _measure(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
