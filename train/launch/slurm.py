"""Runs on a Slurm cluster: a job each, by submitit, requeued when it is pre-empted or runs out of time.

What a job runs is the command line `python -m train ...`, and whether it is done is asked of the store: submitit's own
files, which it pickles, carry nothing else. Scheduler and job talk by one signal, SIGUSR1: Slurm sends it before the
end of a job's time, a run answers it with a checkpoint and exit status 75, and the job asks to be queued again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loopverify.errors import InputError, MissingDependencyError
from train.launch.fleet import Progress, command, missing, threads
from train.resume.preemption import PREEMPTED
from train.spec import RunSpec
from train.store import RunStore

__all__ = ["Job", "options", "train_on_slurm"]

_REQUEUES = 1000  # a run makes some progress between two of them
_HEARD_WITHIN = 2.0  # seconds, until a run that has not ended by itself is told to
_POLL = 0.1
_ASK_AGAIN = 30.0  # seconds after the scheduler did not answer
_MINUTES = 60  # of a job, if it is not said


@dataclass
class Job:
    """A command as a job; plain, since submitit keeps it on disk."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    pid: int | None = None
    """Of the command where it runs."""

    def __call__(self) -> None:
        """Run the command and end as it ends; if it was asked to stop, submitit's handler queues the job again."""
        with subprocess.Popen(self.command, env={**os.environ, **self.environment}) as child:
            self.pid = child.pid
            code = child.wait()
        if code == PREEMPTED:
            signal.raise_signal(signal.SIGUSR1)
        if code != 0:
            sys.exit(code)

    def checkpoint(self) -> Any:
        """Called by submitit at SIGUSR1: the job to queue again, once the command has kept what it has."""
        from submitit.helpers import DelayedSubmission

        if self.pid is not None:
            _stop(self.pid)
        return DelayedSubmission(replace(self, pid=None))


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
        InputError: another form, or a time that is not in whole minutes.
    """
    pairs = [text.lstrip("-").partition("=") for text in given]
    wrong = [text for text, (key, _, value) in zip(given, pairs, strict=True) if not key or not value]
    if wrong:
        raise InputError(f"slurm option {wrong[0]!r}; expected KEY=VALUE as sbatch has it, such as partition=gpu")
    chosen = {key.replace("_", "-"): value for key, _, value in pairs}
    if not chosen.get("time", "1").isdecimal():
        raise InputError(f"slurm option time={chosen['time']}; expected whole minutes, such as time=240")
    return chosen


def train_on_slurm(
    specs: Sequence[RunSpec],
    store: RunStore,
    given: Mapping[str, str],
    *,
    at_once: int | None = None,
    progress: Progress,
    say: Callable[[str], None] = print,
    every: float = 10.0,
) -> dict[RunSpec, str]:
    """Train what is missing of `specs` as jobs of one array; returns {spec: failure} for those that failed.

    Args:
        given: options of sbatch; see `options`.
        at_once: how many jobs run at once; as many as the cluster gives when omitted.
        every: seconds between two looks at the queue.

    Raises:
        MissingDependencyError: submitit is not installed.
        InputError: there is no Slurm here, or it refuses the jobs.
    """
    absent = missing(specs, store, say)
    if not absent:
        return {}
    executor = _executor(store.root.absolute() / "slurm", given, at_once)
    try:
        with executor.batch():
            jobs = [executor.submit(Job(tuple(command(spec, store)), threads(spec))) for spec in absent]
    except RuntimeError as error:  # submitit's own, with what sbatch said
        raise InputError(f"Slurm refuses the jobs: {error}; check the options of sbatch") from error
    for spec, job in zip(absent, jobs, strict=True):
        progress.started(spec)
        say(f"{spec.label}: job {job.job_id}, logs {job.paths.stdout} and .err")
    waiting = {job.job_id: (spec, job.paths.stderr) for spec, job in zip(absent, jobs, strict=True)}
    return _await(waiting, store, progress, say, every)


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
    executor.update_parameters(
        job_name="loopverify",
        time=int(given.get("time", _MINUTES)),
        additional_parameters=others,
        **({} if at_once is None else {"array_parallelism": at_once}),
    )
    return executor


def _await(
    waiting: dict[str, tuple[RunSpec, Path]],
    store: RunStore,
    progress: Progress,
    say: Callable[[str], None],
    every: float,
) -> dict[RunSpec, str]:
    """Wait until no job is in the queue; a run that is then not in the store has failed."""
    failures: dict[RunSpec, str] = {}
    while waiting:
        time.sleep(every)
        queued = _queued(say)
        for job_id in waiting.keys() - queued:
            spec, log = waiting.pop(job_id)
            failure = f"job {job_id}: {_last_line(log)}" if missing([spec], store, say) else None
            if failure is not None:
                failures[spec] = failure
            progress.ended(spec, failure)
    return failures


def _queued(say: Callable[[str], None]) -> set[str]:
    """The ids of this user's jobs that wait or run, as 12 or 12_0; asked until the scheduler answers."""
    squeue = ["squeue", "--noheader", "--array", "--format=%i %A", f"--user={os.getuid()}"]
    while (asked := subprocess.run(squeue, capture_output=True, text=True, check=False)).returncode:
        say(f"Slurm does not answer ({asked.stderr.strip()}); asking again in {_ASK_AGAIN:g} s")
        time.sleep(_ASK_AGAIN)
    return set(asked.stdout.split())


def _last_line(log: Path) -> str:
    """What the run said last, or what ended it."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    told = [line.strip() for line in lines if line.strip() and not line.startswith("srun: ")]
    return f"{told[-1] if told else 'no message'} (in {log})"
