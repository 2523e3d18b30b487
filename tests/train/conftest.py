"""A text small enough to train on in a second."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from train.store import RunStore


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty short documents of made-up sentences, as JSON lines."""
    draw = random.Random(0)
    words = ["the", "state", "of", "a", "loop", "grows", "and", "no", "loss", "sees", "it", "until", "depth", "stops"]
    path = tmp_path_factory.mktemp("text") / "made_up.jsonl"
    documents = [{"text": " ".join(draw.choices(words, k=200)) + "."} for _ in range(40)]
    path.write_text("\n".join(json.dumps(document) for document in documents), encoding="utf-8")
    return path


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """A store that is still empty."""
    return RunStore(tmp_path / "store")
