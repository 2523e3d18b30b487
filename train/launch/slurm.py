"""Runs on a Slurm cluster: a job each, by submitit, requeued when it is pre-empted or runs out of time.

What a job runs is the command line `python -m train ...`, once in each of its tasks, which are the ranks of the run;
whether it is done is asked of the store: submitit's own files, which it pickles, carry nothing else. Scheduler and job
talk by one signal, SIGUSR1: Slurm sends it before the end of a job's time, a run answers it with a checkpoint and exit
status 75 of all its ranks, and the job asks to be queued again, once, by its first task.
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

_REQUEUES = 1000  # a run makes some progress between two of them
_HEARD_WITHIN = 2.0  # seconds, until a run that has not ended by itself is told to
_POLL = 0.1
_LONGEST_POLL = 3600
_ASK_AGAIN = 30.0  # seconds after the scheduler did not answer
_MINUTES = 60  # of a job, if it is not said
_WHOLE = {
    "time": "whole minutes, such as time=240",
    "nodes": "a whole number, such as nodes=2",
    "ntasks-per-node": "a whole number, such as ntasks-per-node=4",
}


@dataclass
class Job:
    """A command as a job, run by each of its tasks; plain, since submitit keeps it on disk."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    ranks: int = 1
    """Tasks, of which each is to know its place among the others if they are several."""
    pid: int | None = None
    """Of the command where it runs."""

    def __call__(self) -> None:
        """Run the command and end as it ends; if it was asked to stop, submitit's handler queues the job again."""
        place = _place() if self.ranks > 1 else {}
        with subprocess.Popen(self.command, env={**os.environ, **self.environment, **place}) as child:
            self.pid = child.pid
            code = child.wait()
        if code == PREEMPTED:
            signal.raise_signal(signal.SIGUSR1)  # does not come back in the first task, whose handler ends it
        elif code != 0:
            sys.exit(code)

    def checkpoint(self) -> Any:
        """Called by submitit at SIGUSR1: the job to queue again, once the command has kept what it has."""
        from submitit.helpers import DelayedSubmission

        if self.pid is not None:
            _stop(self.pid)
        return DelayedSubmission(replace(self, pid=None))


def _place() -> dict[str, str]:
    """The variables by which torch.distributed connects the tasks of a job. Which GPUs there are is left to Slurm."""
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
    """Return when a child has ended. It has heard the signal, too, if its whole job did; if only this process, not."""
    told_at = time.monotonic() + _HEARD_WITHIN
    told = False
    while not _ended(pid):
        if not told and time.monotonic() > told_at:
            os.kill(pid, signal.SIGUSR1)
            told = True
        time.sleep(_POLL)


def _ended(pid: int) -> bool:
    # Not by Popen, whose lock the interrupted wait may hold; and the child is left to be waited for.
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def options(given: Sequence[str]) -> dict[str, str]:
    """Options of sbatch as KEY=VALUE, without the dashes: partition=gpu, time=240, gpus=1.

    Raises:
        InputError: another form, a number that is none, or tasks by another name than ntasks-per-node.
    """
    pairs = [text.lstrip("-").partition("=") for text in given]
    wrong = [text for text, (key, _, value) in zip(given, pairs, strict=True) if not key or not value]
    if wrong:
        raise InputError(f"slurm option {wrong[0]!r}; expected KEY=VALUE as sbatch has it, such as partition=gpu")
    chosen = {key.replace("_", "-"): value for key, _, value in pairs}
    for key, expected in _WHOLE.items():
        least = 0 if key == "time" else 1  # no time is no limit
        if not (value := chosen.get(key, "1")).isdecimal() or int(value) < least:
            raise InputError(f"slurm option {key}={chosen[key]}; expected {expected}")
    if others := [key for key in chosen if key.startswith("ntasks") and key not in _WHOLE]:
        raise InputError(
            f"slurm option {others[0]}={chosen[others[0]]}; expected nodes and ntasks-per-node, whose product is the "
            "number of processes of a run"
        )
    return chosen


def tasks(chosen: Mapping[str, str]) -> int:
    """The tasks of a job with these options, each a process of its run."""
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
    """Train what is missing of `specs` as jobs of one array; returns {spec: failure} for those that failed.

    Args:
        given: options of sbatch; see `options`.
        at_once: how many jobs run at once; as many as the cluster gives when omitted.
        every: seconds between two looks at the queue.

    Raises:
        MissingDependencyError: submitit is not installed.
        InputError: no jobs at once, no time between looks, no Slurm here, or one that refuses the jobs.
    """
    if at_once is not None and at_once < 1:
        raise InputError(f"workers is {at_once}; expected an integer >= 1")
    if not 0 < every <= _LONGEST_POLL:
        raise InputError(f"poll is {every:g}; expected seconds between two looks, above 0 and at most {_LONGEST_POLL}")
    absent = missing(specs, store, say)
    if not absent:
        return {}
    executor = _executor(store.root.absolute() / "slurm", given, at_once)
    try:
        with executor.batch():
            jobs = [executor.submit(_job(spec, store)) for spec in absent]
    except RuntimeError as error:  # submitit's own, with what sbatch said
        raise InputError(f"Slurm refuses the jobs: {error}; check the options of sbatch") from error
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
            "jobs are given to Slurm by the package submitit, which is not installed: pip install 'loopverify[slurm]'"
        ) from error
    try:
        executor = SlurmExecutor(folder, max_num_timeout=_REQUEUES)
    except RuntimeError as error:
        raise InputError("there is no Slurm here: srun is not found; run this where sbatch works") from error
    others = {key: value for key, value in given.items() if key != "time"}
    # What sbatch is told of cores srun does not take over; and ranks wait for ever for one that is gone.
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
    """Wait until no job is in the queue; a run that is then not in the store has failed."""
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
    """The ids of this user's jobs that wait or run, as 12 or 12_0; asked until the scheduler answers."""
    squeue = ["squeue", "--noheader", "--array", "--format=%i %A", f"--user={os.getuid()}"]
    while (asked := subprocess.run(squeue, capture_output=True, text=True, check=False)).returncode:
        say(f"Slurm does not answer ({asked.stderr.strip()}); asking again in {_ASK_AGAIN:g} s")
        time.sleep(_ASK_AGAIN)
    return set(asked.stdout.split())


def _reason(log: Path) -> str:
    """Why a job failed, by what its tasks wrote; `log` is that of the first."""
    logs = sorted(log.parent.glob(log.name.replace("_0_log", "_*_log")))
    told = reason(path.read_text(encoding="utf-8", errors="replace") for path in logs)
    return f"{told} (in {log})"
