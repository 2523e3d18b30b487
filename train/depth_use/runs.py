"""Runs of the arms in the run store: found, or trained in processes of their own and put there."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
from safetensors.torch import save_file

from loopverify import __version__
from loopverify.claims import Run
from loopverify.errors import InputError
from train.depth_use.loop import train
from train.depth_use.protocol import ArmRun
from train.engine.events import Event
from train.launch.run import METRICS, MODEL, RESULT, Say, result
from train.store import CorruptRunError, RunStore, StoredRun

__all__ = ["ensure", "ensure_all", "result"]

THREADS = 1
"""Of a run; part of the result, since it orders the sums."""


def ensure(run: ArmRun, store: RunStore) -> StoredRun:
    """The stored run, trained first where it is missing or corrupt. Safe under several processes."""
    with store.lock(run.determinants()):
        return _find(run, store) or _train_into(store, run)


def ensure_all(runs: Iterable[ArmRun], store: RunStore, *, workers: int | None = None, say: Say = print) -> list[Run]:
    """The results of all `runs`; what is missing is trained, `workers` at a time (a core each when omitted).

    Raises:
        InputError: fewer than one worker.
    """
    workers = len(os.sched_getaffinity(0)) // THREADS if workers is None else workers
    if workers < 1:
        raise InputError(f"workers is {workers}; expected an integer >= 1")
    asked = list(runs)
    missing = [run for run in asked if _find(run, store) is None]
    # A fresh interpreter each: a fork would copy the locks of a parent that has threads.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        training = {pool.submit(_train_one, run, store.root): run for run in missing}
        try:
            for done in as_completed(training):
                say(f"{training[done].label}: {done.result()}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [result(ensure(run, store)) for run in asked]


def _train_one(run: ArmRun, root: Path) -> str:
    """In a process of its own: train one run, and say what came out."""
    begun = time.perf_counter()
    metrics = result(ensure(run, RunStore(root))).metrics
    exits = ", ".join(f"{metrics[f'ce@{k}']:.3f}" for k in range(1, run.protocol.loops + 1))
    return (
        f"CE at exits {exits}, norm {metrics[f'norm@{run.protocol.loops}']:.3g} ({time.perf_counter() - begun:.0f} s)"
    )


def _find(run: ArmRun, store: RunStore) -> StoredRun | None:
    try:
        return store.get(run.determinants())
    except CorruptRunError as error:
        store.discard(error.key)
        return None


def _train_into(store: RunStore, run: ArmRun) -> StoredRun:
    determinants, facts = run.determinants(), _facts(run)
    torch.set_num_threads(THREADS)
    with store.create(determinants, facts) as folder:
        with (folder / METRICS).open("w", encoding="utf-8") as lines:

            def log(event: Event) -> None:
                lines.write(json.dumps(event) + "\n")

            log({"event": "start", "spec": determinants, "facts": facts})
            module, metrics = train(run, log)
            log({"event": "end", "step": run.protocol.steps})
        save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, folder / MODEL)
        made = Run(
            preset="hops",
            condition=run.condition,
            seed=run.seed,
            metrics=metrics,
            facts=facts,
            key=store.key(determinants),
        )
        (folder / RESULT).write_text(made.to_json(), encoding="utf-8")
    stored = store.get(determinants)
    assert stored is not None
    return stored


def _facts(run: ArmRun) -> dict[str, str]:
    task = run.protocol.task
    return {
        "loopverify": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{platform.processor() or platform.machine()} ({os.cpu_count()} cores)",
        "dtype": "float32",
        "threads": str(THREADS),
        "task": f"hops, {task.symbols} symbols, 1 to {task.depth} steps",
        "steps": str(run.protocol.steps),
        "parameters": str(sum(parameter.numel() for parameter in run.model().parameters())),
    }
