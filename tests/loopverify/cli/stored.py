"""Runs as the training harness stores them, with made-up numbers."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loopverify.claims import CLAIMS, Bound, Run

__all__ = ["bounded", "measurement", "stored"]


def stored(root: Path, runs: Iterable[Run], **spec: Any) -> list[Path]:
    """Runs as the training harness stores them: a result, and a manifest that names it."""
    folders = []
    for run in runs:
        folder = root / "runs" / hashlib.sha256(json.dumps([run.to_dict(), spec]).encode()).hexdigest()[:16]
        folder.mkdir(parents=True)
        text = run.to_json()
        (folder / "result.json").write_text(text)
        loss, _, readout = run.condition.partition("/")
        manifest = {
            "spec": {"loss": loss, "readout": readout, "penalty": None, "seed": run.seed, **spec},
            "files": {"result.json": {"bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}},
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
        folders.append(folder)
    return folders


def bounded(preset: str, value: float, seeds: int = 3) -> list[Run]:
    """Runs of the condition of one bound, with the metric at a multiple of it."""
    claim = CLAIMS["P1.T2.tens.per_loop.raw"]
    assert isinstance(claim.form, Bound)
    metrics = {claim.metric: value * claim.form.limit}
    return [Run(preset=preset, condition=claim.form.condition, seed=seed, metrics=metrics) for seed in range(seeds)]


def measurement(root: Path, run: str, code: str, metrics: Mapping[str, float | str], age: float = 0.0) -> Path:
    """A measurement of a stored run as the harness keeps it, made `age` seconds ago."""
    path = root / "measurements" / code / "metrics.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(metrics))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest = {"spec": {"run": run, "code": code}, "files": {"metrics.json": {"sha256": sha256}}}
    path.with_name("manifest.json").write_text(json.dumps(manifest))
    os.utime(path, (made := time.time() - age, made))
    return path
