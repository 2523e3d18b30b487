"""Runs on a Slurm cluster: one job per run, submitted by submitit, requeued when pre-empted or out of time.

Each task of a job runs the command line `python -m train ...`; the tasks are the ranks of the run. Whether a run is
finished is read from the store, not from submitit's pickled files. Slurm announces the end of a job's time with
SIGUSR1. A run then writes a checkpoint and all its ranks exit with status 75, and the first task of the job requeues
it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loopverify.errors import InputError, MissingDependencyError
from train.launch.failure_reason import reason
from train.launch.fleet import Progress, command, missing, threads
from train.resume.preemption import PREEMPTED
from train.specification import RunSpec
from train.store import RunStore, Say

__all__ = ["Job", "options", "tasks", "train_on_slurm"]

_REQUEUES = 1000  # progress is made between any two of them
_GRACE = 2.0  # seconds until the signal is sent to a command that has not ended by itself
_POLL = 0.1
_LONGEST_POLL = 3600
_RETRY = 30.0  # seconds between queries of a scheduler that does not answer
_MINUTES = 60  # default time limit of a job
_WHOLE = {
    "time": "whole minutes, such as time=240",
    "nodes": "a whole number, such as nodes=2",
    "ntasks-per-node": "a whole number, such as ntasks-per-node=4",
}


@dataclass
class Job:
    """A command as a job, run by each of its tasks; plain data, since submitit pickles it."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    ranks: int = 1
    """Number of tasks; if there are several, each gets the environment variables of its rank."""
    pid: int | None = None
    """Process id of the running command."""

    def __call__(self) -> None:
        """Run the command and exit with its status; if it was stopped by a signal, submitit's handler requeues the
        job."""
        place = _place() if self.ranks > 1 else {}
        with subprocess.Popen(self.command, env={**os.environ, **self.environment, **place}) as child:
            self.pid = child.pid
            code = child.wait()
        if code == PREEMPTED:
            signal.raise_signal(signal.SIGUSR1)  # does not return in the first task, whose handler ends the task
        elif code != 0:
            sys.exit(code)

    def checkpoint(self) -> Any:
        """Called by submitit at SIGUSR1: returns the job to requeue, after the command has written its checkpoint."""
        from submitit.helpers import DelayedSubmission

        if self.pid is not None:
            _stop(self.pid)
        return DelayedSubmission(replace(self, pid=None))


def _place() -> dict[str, str]:
    """The variables with which torch.distributed connects the tasks of a job. Slurm assigns the GPUs."""
    from submitit.helpers import TorchDistributedEnvironment

    place = TorchDistributedEnvironment()
    return {
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": str(place.master_port),
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
    }


def _stop(pid: int) -> None:
    """Wait until a child has ended; send it SIGUSR1 if it has not ended within a grace period.

    If Slurm signals the whole job, the child has received the signal as well; if it signals this process only, it has
    not.
    """
    deadline = time.monotonic() + _GRACE
    signaled = False
    while not _ended(pid):
        if not signaled and time.monotonic() > deadline:
            os.kill(pid, signal.SIGUSR1)
            signaled = True
        time.sleep(_POLL)


def _ended(pid: int) -> bool:
    # Popen.poll could deadlock, because the interrupted Popen.wait may hold its lock. WNOWAIT leaves the exit status
    # for that wait.
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def options(given: Sequence[str]) -> dict[str, str]:
    """Options of sbatch as KEY=VALUE, without the dashes: partition=gpu, time=240, gpus=1.

    Raises:
        InputError: another form, an invalid number, or tasks under another name than ntasks-per-node.
    """
    pairs = [text.lstrip("-").partition("=") for text in given]
    wrong = [text for text, (key, _, value) in zip(given, pairs, strict=True) if not key or not value]
    if wrong:
        raise InputError(
            f"slurm option {wrong[0]!r}; expected KEY=VALUE with an option of sbatch, such as partition=gpu"
        )
    chosen = {key.replace("_", "-"): value for key, _, value in pairs}
    for key, expected in _WHOLE.items():
        least = 0 if key == "time" else 1  # time 0 means no limit
        if not (value := chosen.get(key, "1")).isdecimal() or int(value) < least:
            raise InputError(f"slurm option {key}={chosen[key]}; expected {expected}")
    if others := [key for key in chosen if key.startswith("ntasks") and key not in _WHOLE]:
        raise InputError(
            f"slurm option {others[0]}={chosen[others[0]]}; expected nodes and ntasks-per-node, whose product is the "
            "number of processes of a run"
        )
    return chosen


def tasks(chosen: Mapping[str, str]) -> int:
    """The number of tasks of a job with these options, each of which is a process of its run."""
    return int(chosen.get("nodes", 1)) * int(chosen.get("ntasks-per-node", 1))


def train_on_slurm(
    specs: Sequence[RunSpec],
    store: RunStore,
    given: Mapping[str, str],
    *,
    at_once: int | None = None,
    progress: Progress,
    say: Say = print,
    every: float = 10.0,
) -> dict[RunSpec, str]:
    """Train those of `specs` that are missing as jobs of one array; returns {spec: failure} for failed runs.

    Args:
        given: options of sbatch, from `options`.
        at_once: largest number of jobs that run at once; None: no limit.
        every: seconds between two queries of the queue.

    Raises:
        MissingDependencyError: submitit is not installed.
        InputError: at_once < 1, every outside (0, 3600], no Slurm on this machine, or Slurm rejects the jobs.
    """
    if at_once is not None and at_once < 1:
        raise InputError(f"workers is {at_once}; expected an integer >= 1")
    if not 0 < every <= _LONGEST_POLL:
        raise InputError(f"poll is {every:g}; expected seconds between two queries, in (0, {_LONGEST_POLL}]")
    absent = missing(specs, store, say)
    if not absent:
        return {}
    executor = _executor(store.root.absolute() / "slurm", given, at_once)
    try:
        with executor.batch():
            jobs = [executor.submit(_job(spec, store)) for spec in absent]
    except RuntimeError as error:  # raised by submitit, with the message of sbatch
        raise InputError(f"Slurm rejects the jobs: {error}; check the options of sbatch") from error
    for spec, job in zip(absent, jobs, strict=True):
        progress.started(spec)
        say(f"{spec.label}: job {job.job_id}, logs {job.paths.stdout} and .err")
    waiting = {job.job_id: (spec, job.paths.stderr) for spec, job in zip(absent, jobs, strict=True)}
    return _await(waiting, store, progress, say, every)


def _job(spec: RunSpec, store: RunStore) -> Job:
    return Job(tuple(command(spec, store)), threads(spec), spec.execution.ranks)


def _executor(folder: Path, given: Mapping[str, str], at_once: int | None) -> Any:
    os.environ["SUBMITIT_PREEMPT_SIGNAL"] = "USR1"  # read by submitit when it is imported, here and in the job
    try:
        from submitit import SlurmExecutor
    except ImportError as error:
        raise MissingDependencyError(
            "Slurm jobs are submitted by the package submitit, which is not installed: pip install 'loopverify[slurm]'"
        ) from error
    try:
        executor = SlurmExecutor(folder, max_num_timeout=_REQUEUES)
    except RuntimeError as error:
        raise InputError(
            "there is no Slurm on this machine: srun is not found; run this command where sbatch works"
        ) from error
    others = {key: value for key, value in given.items() if key != "time"}
    # srun does not inherit --cpus-per-task from sbatch. --kill-on-bad-exit ends all tasks when one fails, since the
    # other ranks would wait for it for ever.
    cores = [f"--cpus-per-task={given['cpus-per-task']}"] if "cpus-per-task" in given else []
    executor.update_parameters(
        job_name="loopverify",
        time=int(given.get("time", _MINUTES)),
        additional_parameters=others,
        srun_args=["--kill-on-bad-exit=1", *cores],
        **({} if at_once is None else {"array_parallelism": at_once}),
    )
    return executor


def _await(
    waiting: dict[str, tuple[RunSpec, Path]],
    store: RunStore,
    progress: Progress,
    say: Say,
    every: float,
) -> dict[RunSpec, str]:
    """Wait until no job is in the queue; a run that is not in the store when its job has left the queue has failed."""
    failures: dict[RunSpec, str] = {}
    while waiting:
        time.sleep(every)
        queued = _queued(say)
        for job_id in waiting.keys() - queued:
            spec, log = waiting.pop(job_id)
            failure = f"job {job_id}: {_reason(log)}" if missing([spec], store, say) else None
            if failure is not None:
                failures[spec] = failure
            progress.ended(spec, failure)
    return failures


def _queued(say: Say) -> set[str]:
    """The ids (12 or 12_0) of this user's waiting and running jobs; the query is repeated until Slurm answers."""
    squeue = ["squeue", "--noheader", "--array", "--format=%i %A", f"--user={os.getuid()}"]
    while (answer := subprocess.run(squeue, capture_output=True, text=True, check=False)).returncode:
        say(f"Slurm does not answer ({answer.stderr.strip()}); trying again in {_RETRY:g} s")
        time.sleep(_RETRY)
    return set(answer.stdout.split())


def _reason(log: Path) -> str:
    """Why a job failed, from the logs of its tasks; `log` is that of the first task."""
    logs = sorted(log.parent.glob(log.name.replace("_0_log", "_*_log")))
    found = reason(path.read_text(encoding="utf-8", errors="replace") for path in logs)
    return f"{found} (in {log})"
