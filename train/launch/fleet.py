"""Many runs in parallel: each in one or more processes, on the cores or GPUs of this machine, into one store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from queue import Queue

import torch

from loopverify.errors import InputError, LoopverifyError
from train.data import TaskSpec
from train.engine.events import Event
from train.engine.open import open_examples
from train.launch.failure_reason import reason
from train.launch.run import find
from train.specification import RunSpec, precision_of
from train.store import RunStore, Say

__all__ = ["Progress", "command", "ensure_all", "missing", "threads", "torchrun", "workers_for"]


class Progress:
    """Receives the events of a fleet and ignores them."""

    def started(self, spec: RunSpec) -> None: ...
    def event(self, spec: RunSpec, event: Event) -> None: ...
    def ended(self, spec: RunSpec, failure: str | None) -> None: ...


def workers_for(spec: RunSpec) -> int:
    """Runs that this machine trains in parallel: limited by its GPUs, one per process, or its cores, one per thread.

    Raises:
        InputError: there are fewer GPUs than a run needs.
    """
    if spec.device == "cuda":
        return len(_groups(spec.execution.ranks))
    if spec.preset.threads is None:
        return 1
    return max(1, len(os.sched_getaffinity(0)) // (spec.preset.threads * spec.execution.ranks))


def ensure_all(
    specs: Sequence[RunSpec],
    store: RunStore,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    say: Say = print,
) -> dict[RunSpec, str]:
    """Train those of `specs` that are missing; returns {spec: failure} for failed runs. All others are then stored.

    Each missing run is a separate `python -m train`, under torchrun if it takes several processes, with GPUs of its own
    if there are enough for `workers`. If this process is killed, its children end at their next progress line, because
    the pipe is closed.

    Raises:
        InputError: workers < 1, or fewer GPUs than a run needs.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; expected an integer >= 1")
    absent = missing(specs, store, say)
    if not absent:
        return {}
    fleet = _Fleet(store, progress or Progress())
    return fleet.run(absent, min(map(workers_for, absent)) if workers is None else workers)


def missing(specs: Sequence[RunSpec], store: RunStore, say: Say = print) -> list[RunSpec]:
    """Those of `specs` that are not in the store. Their texts are tokenized here, once, before processes need them."""
    examples = {preset: open_examples(spec, store) for preset, spec in {spec.preset: spec for spec in specs}.items()}
    return [spec for spec in specs if find(spec, store, examples[spec.preset], say) is None]


def command(spec: RunSpec, store: RunStore, launcher: Sequence[str] = ()) -> list[str]:
    """The command line that trains a run into a store, with JSON events on standard output.

    Args:
        launcher: options of Python with which each process of the run is started; see `torchrun`.
    """
    p, execution = spec.preset, spec.execution
    return [
        *(sys.executable, *launcher, "-m", "train", "--progress", "json", "--runs", str(store.root.absolute())),
        *("--preset", p.name, "--loss", spec.loss, "--readout", spec.readout),
        *("--recurrence", spec.recurrence, "--seed", str(spec.seed)),
        *("--device", spec.device),
        *(() if isinstance(p.data, TaskSpec) else ("--data", p.data.source)),
        *(("--lr", repr(spec.lr)) if spec.lr is not None else ()),
        *(("--penalty", repr(spec.penalty)) if spec.penalized else ()),
        *(("--steps", str(p.steps)) if p.steps is not None else ()),
        *("--precision", precision_of(spec.device, execution.precision)),
        *(("--parallel", execution.parallel) if execution.parallel is not None else ()),
        *(("--micro-batch", str(execution.micro_batch)) if execution.micro_batch is not None else ()),
        *(("--compile",) if execution.compiled else ()),
    ]


def torchrun(ranks: int) -> tuple[str, ...]:
    """The launcher of a run of several processes on this machine; empty for one process."""
    if ranks == 1:
        return ()
    return ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))


@dataclass
class _Fleet:
    store: RunStore
    progress: Progress
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, specs: Sequence[RunSpec], workers: int) -> dict[RunSpec, str]:
        failures: dict[RunSpec, str] = {}
        places = _places(specs[0], workers)
        with ThreadPoolExecutor(workers) as pool:
            pending: dict[Future[str | None], RunSpec] = {pool.submit(self._one, spec, places): spec for spec in specs}
            try:
                while pending:
                    for done in wait(pending, return_when=FIRST_COMPLETED).done:
                        spec = pending.pop(done)
                        if (failure := done.result()) is not None:
                            failures[spec] = failure
            except BaseException:
                for future in pending:
                    future.cancel()
                for child in self.children:
                    child.terminate()
                raise
        return failures

    def _one(self, spec: RunSpec, places: Queue[Mapping[str, str]]) -> str | None:
        place = places.get()
        try:
            return self._at(spec, place)
        finally:
            places.put(place)

    def _at(self, spec: RunSpec, place: Mapping[str, str]) -> str | None:
        self.progress.started(spec)
        with subprocess.Popen(
            command(spec, self.store, torchrun(spec.execution.ranks)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads(spec), **place},
        ) as child:
            self.children.append(child)
            assert child.stdout is not None
            assert child.stderr is not None
            with ThreadPoolExecutor(
                1
            ) as reader:  # reads concurrently, because a full stderr pipe would stall the child
                errors = reader.submit(child.stderr.read)
                for line in child.stdout:
                    self.progress.event(spec, _parse(line))
        failed = child.returncode != 0
        failure = f"exit status {child.returncode}: {reason([errors.result()])}" if failed else None
        self.progress.ended(spec, failure)
        return failure


def threads(spec: RunSpec) -> dict[str, str]:
    """The environment that limits a process to the threads of its run."""
    return {} if spec.preset.threads is None else {"OMP_NUM_THREADS": str(spec.preset.threads)}


def _places(spec: RunSpec, workers: int) -> Queue[Mapping[str, str]]:
    """The environment of each worker, which assigns each process of its run a GPU."""
    groups = _groups(spec.execution.ranks) if spec.device == "cuda" else []
    places: Queue[Mapping[str, str]] = Queue()
    for worker in range(workers):
        places.put({"CUDA_VISIBLE_DEVICES": groups[worker % len(groups)]} if groups else {})
    return places


def _groups(size: int) -> list[str]:
    """The GPUs of this machine, `size` at a time, as CUDA_VISIBLE_DEVICES names them."""
    gpus = _gpus()
    if len(gpus) < size:
        raise InputError(
            f"a run takes {size} GPUs, one per process, and torch sees {len(gpus)}; "
            "use fewer --ranks, --device cpu, or a machine with more GPUs"
        )
    return [",".join(gpus[first : first + size]) for first in range(0, len(gpus) - size + 1, size)]


def _gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] or [str(index) for index in range(count)]


def _parse(line: str) -> Event:
    try:
        event: Event = json.loads(line)
    except json.JSONDecodeError as error:
        raise LoopverifyError(f"a training process printed {line!r}; expected one JSON event per line") from error
    return event
