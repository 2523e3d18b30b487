"""One stored run: found in the store, or trained and put there."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from safetensors.torch import save_file

from loopverify import __version__
from loopverify.claims import Run
from train.data import Examples, TaskExamples, TaskSpec, TextExamples, load_corpus
from train.engine.evaluate import at_first_exit
from train.engine.events import Report
from train.engine.keeper import Keeper, Keeping
from train.engine.loop import DivergedError, train
from train.machine.distributed import ALONE, Ranks
from train.machine.hardware import dtype_of, use_device
from train.resume.checkpoint import Checkpoints
from train.spec import RunSpec
from train.store import CorruptRunError, RunStore, StoredRun

__all__ = ["ensure", "find", "history", "open_examples", "result", "use_device"]

RESULT, METRICS, MODEL = "result.json", "metrics.jsonl", "model.safetensors"
Say = Callable[[str], None]


def open_examples(spec: RunSpec, store: RunStore) -> Examples:
    """What a run is trained and evaluated on; a text is tokenized, or found in the store's cache."""
    p = spec.preset
    if isinstance(p.data, TaskSpec):
        return TaskExamples(spec=p.data, batch=p.batch, held_out_count=p.eval_windows)
    corpus = load_corpus(p.data, store.root / "data")
    return TextExamples(corpus=corpus, length=p.seq_len, stride=p.stride, batch=p.batch)


def find(spec: RunSpec, store: RunStore, examples: Examples, say: Say = print) -> StoredRun | None:
    """The stored run, or None; a corrupt one is named, moved aside and counts as missing."""
    try:
        return store.get(spec.determinants(examples.digest))
    except CorruptRunError as error:
        moved = store.discard(error.key)
        say(f"{spec.label}: {error}. Moved to {moved}; it will be trained again")
        return None


def ensure(
    spec: RunSpec,
    store: RunStore,
    report: Report,
    say: Say = print,
    *,
    keeping: Keeping | None = None,
    ranks: Ranks = ALONE,
) -> StoredRun:
    """The stored run of `spec`; trained first when missing, from its last checkpoint if it has one.

    Safe under several processes: one trains, others wait. `ranks` of one run all call this; the first reads and writes.

    Raises:
        DivergedError, OutOfMemoryError, PreemptedError: as `train.engine.loop.train`; a run that diverged keeps no
            checkpoint.
        InputError: `keeping.start` is a checkpoint of another run, or ranks are about to train different ones.
    """
    if spec.preset.threads is not None:
        torch.set_num_threads(spec.preset.threads)
    examples = open_examples(spec, store)
    determinants = spec.determinants(examples.digest)
    ranks.require_equal({**determinants, **determinants["preset"], "preset": spec.preset.name, "data": examples.digest})
    keeping = keeping or Keeping()
    if keeping.start is not None:
        keeping.start.require_of(determinants)
    checkpoints = Checkpoints(store.root, store.key(determinants), ranks=ranks, keep=keeping.keep)
    with store.lock(determinants) if ranks.first else nullcontext():
        found = find(spec, store, examples, say) if ranks.first else None
        if not ranks.told(found is not None):
            keeper = Keeper(checkpoints, determinants, keeping, report, say)
            with keeping.preemption.deferred():
                _train_into(store, spec, examples, keeper, ranks, say)
        checkpoints.clear()
    ranks.together(lambda: None)  # what the first has stored is now there for all
    stored = found or store.get(determinants)
    assert stored is not None
    return stored


def _train_into(store: RunStore, spec: RunSpec, examples: Examples, keeper: Keeper, ranks: Ranks, say: Say) -> None:
    determinants, facts = spec.determinants(examples.digest), _facts(spec, examples)
    # The log is a whole experiment: what ran, with what and on what, comes first.
    keeper.note({"event": "start", "spec": determinants, "facts": facts})
    try:
        weights, metrics = train(spec, examples, keeper.report, keeper=keeper, ranks=ranks, say=say)
    except DivergedError:
        keeper.forget()  # from any checkpoint it would diverge again
        raise
    if not ranks.first:
        return
    if spec.preset.first_exit is not None:
        metrics |= at_first_exit(_evaluations(keeper.log()), spec.preset.first_exit, spec.preset.loops)
    run = Run(
        preset=spec.preset.name,
        condition=spec.condition,
        seed=spec.seed,
        metrics=metrics,
        facts=facts,
        key=store.key(determinants),
    )
    with store.create(determinants, facts) as folder:
        (folder / METRICS).write_text(keeper.log(), encoding="utf-8")
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / MODEL)
        (folder / RESULT).write_text(run.to_json(), encoding="utf-8")


def result(stored: StoredRun) -> Run:
    """What the claims are judged on."""
    return Run.from_json((stored.path / RESULT).read_text(encoding="utf-8"))


def history(stored: StoredRun) -> list[Mapping[str, Any]]:
    """The evaluations during training, in order: {'step', 'norm@k', 'ce@k', ...}."""
    return _evaluations((stored.path / METRICS).read_text(encoding="utf-8"))


def _evaluations(log: str) -> list[Mapping[str, Any]]:
    return [event for event in map(json.loads, log.splitlines()) if event["event"] == "eval"]


def _facts(spec: RunSpec, examples: Examples) -> dict[str, str]:
    gpu = torch.cuda.get_device_name() if spec.device == "cuda" else ""
    return {
        "loopverify": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": gpu or f"{platform.processor() or platform.machine()} ({os.cpu_count()} cores)",
        "dtype": dtype_of(spec.device, spec.execution.precision),
        "threads": str(torch.get_num_threads()),
        **examples.facts,
    }
