"""Runs small enough to train inside a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from loopverify.tasks import Hops
from train.data import TaskSpec
from train.launch.run import ensure
from train.specification import Preset, RunSpec, preset
from train.store import RunStore, StoredRun

Trained = Callable[..., tuple[RunSpec, StoredRun]]
"""(readout=..., ...) -> a spec and its stored run."""


def micro(text: Path, **changes: object) -> Preset:
    """A preset of one layer that trains for five steps."""
    tiny = preset("tiny", source=str(text), steps=5)
    small = {
        "d_model": 16,
        "layers": 1,
        "heads": 1,
        "d_ff": 32,
        "seq_len": 16,
        "eval_windows": 32,
        "history_windows": 8,
    }
    return replace(tiny, **{**small, **changes})


def micro_hops(**changes: object) -> Preset:
    """The preset hops with a smaller task and model, for four steps."""
    small = {
        "data": TaskSpec(task=Hops(symbols=3, depth=2)),
        "seq_len": 4,
        "stride": 4,
        "d_model": 16,
        "heads": 2,
        "d_ff": 16,
        "batch": 4,
        "steps": 4,
        "eval_windows": 64,
        "history_windows": 32,
        "history_every": 2,
    }
    return replace(preset("hops"), **{**small, **changes})


def trained(store: RunStore, text: Path, **changes: object) -> tuple[RunSpec, StoredRun]:
    """A stored run; `changes` are fields of its spec, of which `preset` holds fields of the preset."""
    shape = micro(text, **changes.pop("preset", {}))  # type: ignore[arg-type]
    spec = RunSpec(**{"preset": shape, "loss": "per_loop", "readout": "rmsnorm", **changes})  # type: ignore[arg-type]
    return spec, ensure(spec, store, lambda event: None)
