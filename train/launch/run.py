"""One stored run: found in the store, or trained and stored."""

from __future__ import annotations

import os
import platform
from contextlib import nullcontext

import torch
from safetensors.torch import save_file

from loopverify import __version__
from loopverify.claims import Run
from loopverify.errors import InputError
from train.data import Examples
from train.engine.checkpointing import Checkpointer, CheckpointPolicy
from train.engine.events import Event, Report, evaluations
from train.engine.loop import DivergedError, train
from train.engine.open import open_examples
from train.machine.distributed import ALONE, Ranks
from train.machine.hardware import dtype_of
from train.resume.checkpoint import Checkpoints
from train.specification import RunSpec
from train.store import RunStore, Say, StoredRun
from train.store.files import METRICS, MODEL, RESULT

__all__ = ["ensure", "find", "history", "result"]


def find(spec: RunSpec, store: RunStore, examples: Examples, say: Say = print) -> StoredRun | None:
    """The stored run, or None; a corrupt run is reported, moved to corrupt/ and treated as missing."""
    report: Say = lambda message: say(f"{spec.label}: {message}")  # noqa: E731
    return store.find(spec.determinants(examples), report, "it will be trained again")


def ensure(
    spec: RunSpec,
    store: RunStore,
    report: Report,
    say: Say = print,
    *,
    policy: CheckpointPolicy | None = None,
    ranks: Ranks = ALONE,
) -> StoredRun:
    """The stored run of `spec`; if it is missing, it is trained, from its newest checkpoint if there is one.

    Safe for concurrent processes: one trains while the others wait. All `ranks` of a run call this; the first one
    accesses the store.

    Raises:
        DivergedError, OutOfMemoryError, PreemptedError: as `train.engine.loop.train`; the checkpoints of a run that
            diverged are removed.
        InputError: `policy.start` is a checkpoint of another run, or the ranks have different specs.
    """
    examples = open_examples(spec, store)
    determinants = spec.determinants(examples)
    ranks.require_equal({**determinants, **determinants["preset"], "preset": spec.preset.name})
    policy = policy or CheckpointPolicy()
    if policy.start is not None:
        policy.start.require_of(determinants)
    if spec.continued != (policy.start and policy.start.digest):
        raise InputError(
            f"{spec.label} is continued from {spec.continued}, and policy.start is {policy.start}; expected "
            "spec.continued to be the digest of policy.start, since a continued run is another run"
        )
    checkpoints = Checkpoints(store.root, store.key(determinants), ranks=ranks, keep=policy.keep)
    with store.lock(determinants) if ranks.first else nullcontext():
        found = find(spec, store, examples, say) if ranks.first else None
        if not ranks.broadcast(found is not None):
            checkpointer = Checkpointer(checkpoints, determinants, policy, report, say)
            with policy.preemption.deferred():
                _train_into(store, spec, examples, checkpointer, ranks, say)
        checkpoints.clear()
    ranks.together(lambda: None)  # a barrier: the run that the first rank stored is now visible to all
    stored = found or store.get(determinants)
    assert stored is not None
    return stored


def _train_into(
    store: RunStore, spec: RunSpec, examples: Examples, checkpointer: Checkpointer, ranks: Ranks, say: Say
) -> None:
    determinants, facts = spec.determinants(examples), _facts(spec, examples)
    # The log documents the whole experiment and begins with its spec, versions and hardware.
    checkpointer.note({"event": "start", "spec": determinants, "facts": facts})
    try:
        weights, metrics = train(spec, examples, checkpointer.report, checkpointer=checkpointer, ranks=ranks, say=say)
    except DivergedError:
        checkpointer.forget()  # from any of its checkpoints the run would diverge again
        raise
    if not ranks.first:
        return
    run = Run(
        preset=spec.preset.name,
        condition=spec.condition,
        seed=spec.seed,
        metrics=metrics,
        facts=facts,
        key=store.key(determinants),
    )
    with store.create(determinants, facts) as folder:
        (folder / METRICS).write_text(checkpointer.log(), encoding="utf-8")
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / MODEL)
        (folder / RESULT).write_text(run.to_json(), encoding="utf-8")


def result(stored: StoredRun) -> Run:
    """The metrics and facts of a run, on which claims are judged."""
    return Run.from_json((stored.path / RESULT).read_text(encoding="utf-8"))


def history(stored: StoredRun) -> list[Event]:
    """The evaluations during training, in order: {'step', 'norm@k', 'ce@k', ...}."""
    return evaluations((stored.path / METRICS).read_text(encoding="utf-8"))


def _facts(spec: RunSpec, examples: Examples) -> dict[str, str]:
    gpu = torch.cuda.get_device_name() if spec.device == "cuda" else ""
    return {
        "loopverify": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": gpu or f"{platform.processor() or platform.machine()} ({os.cpu_count()} cores)",
        "dtype": dtype_of(spec.device, spec.execution.precision),
        "threads": str(spec.preset.threads or torch.get_num_threads()),
        **examples.facts,
    }
