"""A store with small runs in it, for the tests of stores and of what lies in them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from train.store import RunStore, StoredRun

SPEC = {"preset": {"lr": 1e-2, "layers": 2}, "seed": 0}
FACTS = {"host": "here", "versions": {"torch": torch.__version__}}


def fill(store: RunStore, spec: dict[str, object] = SPEC, value: float = 1.0) -> StoredRun:
    with store.create(spec, FACTS) as folder:
        (folder / "result.json").write_text(json.dumps({"value": value}), encoding="utf-8")
        save_file({"weights": torch.full((4,), value)}, folder / "model.safetensors")
    stored = store.get(spec)
    assert stored is not None
    return stored


def leftovers(store: RunStore) -> list[Path]:
    return list((store.root / ".temporary").iterdir())
