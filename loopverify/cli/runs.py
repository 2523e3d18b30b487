"""Stored runs, read as plain files and grouped into studies, within which runs may be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loopverify.claims import Run
from loopverify.errors import InputError

__all__ = ["Study", "read_studies"]

_VARIES = ("loss", "readout", "recurrence", "penalty", "lr", "seed")
"""The entries of a run's spec that may differ within one study; all others are the same."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs of one preset with equal specs but for condition and seed."""

    title: str
    """The preset, and how the study differs from others of the same preset."""
    runs: tuple[Run, ...]


def read_studies(root: Path) -> tuple[Study, ...]:
    """The studies in `root`/runs/*/, by preset.

    Raises:
        InputError: the folder does not exist or has no runs, or the files of a run are damaged.
    """
    paths = sorted(root.glob("runs/*/result.json"))
    if not paths:
        reason = "it has no runs/*/result.json" if root.is_dir() else "it is not a folder"
        raise InputError(f"no stored runs in {root}: {reason}; give the folder that `pytest train --runs` wrote to")
    groups: dict[str, list[tuple[Run, Mapping[str, Any]]]] = {}
    measured = _measured(root)
    for path in paths:
        run, shared = _read(path, measured)
        groups.setdefault(json.dumps([run.preset, shared], sort_keys=True), []).append((run, shared))
    presets = [group[0][0].preset for group in groups.values()]
    studies = []
    for group in groups.values():
        run, shared = group[0]
        rivals = [other[0][1] for other in groups.values() if other[0][0].preset == run.preset]
        title = run.preset if presets.count(run.preset) == 1 else f"{run.preset} ({_difference(shared, rivals)})"
        studies.append(Study(title=title, runs=tuple(run for run, _ in group)))
    return tuple(sorted(studies, key=lambda study: study.title))


def _read(path: Path, measured: Mapping[str, Mapping[str, float]]) -> tuple[Run, Mapping[str, Any]]:
    """A run with its measured metrics, and the part of its spec that it shares with the others of its study."""
    with _naming(path.parent):
        text, record = _verified(path)
        run = Run.from_json(text)
        shared = {name: value for name, value in record.get("spec", {}).items() if name not in _VARIES}
        return replace(run, metrics={**measured.get(run.key, {}), **run.metrics}), shared


def _measured(root: Path) -> dict[str, dict[str, float]]:
    """Metrics measured after training, by the key of their run; if there are several versions, those of the last."""
    found: dict[str, dict[str, float]] = {}
    for path in sorted(root.glob("measurements/*/metrics.json"), key=lambda path: path.stat().st_mtime):
        with _naming(path.parent):
            text, record = _verified(path)
            metrics = {name: float(value) for name, value in json.loads(text).items()}
            found.setdefault(record["spec"]["run"], {}).update(metrics)
    return found


def _verified(path: Path) -> tuple[str, Mapping[str, Any]]:
    """The text of a stored file, checked against the digest in its manifest, and the manifest."""
    manifest = path.with_name("manifest.json")
    content = path.read_bytes()
    record: Mapping[str, Any] = json.loads(manifest.read_bytes()) if manifest.exists() else {}
    digest = record.get("files", {}).get(path.name, {}).get("sha256")
    if digest is not None and digest != hashlib.sha256(content).hexdigest():
        raise InputError(f"{path.name} differs from the digest in its manifest; remove the run, or train it again")
    return content.decode(), record


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Report an error in a folder of the store with the folder's name."""
    try:
        yield
    except (OSError, ValueError, AttributeError, LookupError) as error:  # an InputError is a ValueError
        raise InputError(f"the stored run {folder} is damaged: {error}") from error


def _difference(shared: Mapping[str, Any], rivals: list[Mapping[str, Any]]) -> str:
    """The entries of a spec that not all rivals share; nested entries one by one."""
    flat = [_flat(rival) for rival in rivals]
    own = _flat(shared)
    names = [name for name in own if len({json.dumps(rival.get(name)) for rival in flat}) > 1]
    return ", ".join(f"{name} {own[name]}" for name in names)


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in spec.items():
        parts = value if isinstance(value, Mapping) else {"": value}
        flat |= {f"{name}.{part}".rstrip("."): entry for part, entry in parts.items()}
    return flat
