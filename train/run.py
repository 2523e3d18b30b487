"""One stored run: found in the store, or trained and put there."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors.torch import save_file

from loopverify import __version__
from loopverify.claims import Run
from loopverify.errors import InputError
from train.data import Corpus, load_corpus
from train.loop import Event, Report, train
from train.spec import RunSpec
from train.store import CorruptRunError, RunStore, StoredRun

__all__ = ["ensure", "find", "history", "open_corpus", "result", "use_device"]

RESULT, METRICS, MODEL = "result.json", "metrics.jsonl", "model.safetensors"
Say = Callable[[str], None]


def use_device(name: str) -> tuple[str, str]:
    """The kind of device to run on and the reason; `name` is 'auto', 'cpu' or 'cuda'."""
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda", f"cuda: found {torch.cuda.get_device_name()}; bfloat16 autocast"
        return "cpu", "cpu: torch sees no CUDA device; float32"
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda', but torch sees no CUDA device; expected 'cpu', or 'auto' for what there is")
    return name, f"{name}: as asked"


def open_corpus(spec: RunSpec, store: RunStore) -> Corpus:
    """The tokenized text of a run, from the store's cache where it is there."""
    return load_corpus(spec.preset.data, store.root / "data")


def find(spec: RunSpec, store: RunStore, corpus: Corpus, say: Say = print) -> StoredRun | None:
    """The stored run, or None; a corrupt one is named, moved aside and counts as missing."""
    try:
        return store.get(spec.determinants(corpus.digest))
    except CorruptRunError as error:
        moved = store.discard(error.key)
        say(f"{spec.label}: {error}. Moved to {moved}; it will be trained again")
        return None


def ensure(spec: RunSpec, store: RunStore, report: Report, say: Say = print) -> StoredRun:
    """The stored run of `spec`; trained first when missing. Safe under several processes: one trains, others wait."""
    if spec.preset.threads is not None:
        torch.set_num_threads(spec.preset.threads)
    corpus = open_corpus(spec, store)
    determinants = spec.determinants(corpus.digest)
    with store.lock(determinants):
        found = find(spec, store, corpus, say)
        return found if found is not None else _train_into(store, spec, corpus, report)


def _train_into(store: RunStore, spec: RunSpec, corpus: Corpus, report: Report) -> StoredRun:
    determinants = spec.determinants(corpus.digest)
    facts = _facts(spec, corpus)
    with store.create(determinants, facts) as folder:
        with (folder / METRICS).open("w", encoding="utf-8") as lines:

            def log(event: Event) -> None:
                lines.write(json.dumps(event) + "\n")
                report(event)

            # The log is a whole experiment: what ran, with what and on what, comes first.
            lines.write(json.dumps({"event": "start", "spec": determinants, "facts": facts}) + "\n")
            module, metrics = train(spec, corpus, log)
        save_file({name: t.contiguous() for name, t in _unshared(module.state_dict()).items()}, folder / MODEL)
        run = Run(
            preset=spec.preset.name,
            condition=spec.condition,
            seed=spec.seed,
            metrics=metrics,
            facts=facts,
            key=store.key(determinants),
        )
        (folder / RESULT).write_text(run.to_json(), encoding="utf-8")
    stored = store.get(determinants)
    assert stored is not None
    return stored


def result(stored: StoredRun) -> Run:
    """What the claims are judged on."""
    return Run.from_json((stored.path / RESULT).read_text(encoding="utf-8"))


def history(stored: StoredRun) -> list[Mapping[str, Any]]:
    """The evaluations during training, in order: {'step', 'norm@k', 'ce@k', ...}."""
    lines = (stored.path / METRICS).read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "eval"]


def _facts(spec: RunSpec, corpus: Corpus) -> dict[str, str]:
    gpu = torch.cuda.get_device_name() if spec.device == "cuda" else ""
    return {
        "loopverify": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": gpu or f"{platform.processor() or platform.machine()} ({os.cpu_count()} cores)",
        "dtype": "bfloat16 autocast" if spec.device == "cuda" else "float32",
        "threads": str(torch.get_num_threads()),
        "text": corpus.name,
        "train tokens": str(len(corpus.train)),
        "held-out tokens": str(len(corpus.held_out)),
        "vocabulary": str(corpus.vocab_size),
    }


def _unshared(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One name for each memory: safetensors refuses a tied head stored twice."""
    by_memory = {tensor.data_ptr(): (name, tensor) for name, tensor in reversed(list(state.items()))}
    return dict(reversed(by_memory.values()))
