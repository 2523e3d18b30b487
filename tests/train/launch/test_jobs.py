"""A job for Slurm, without one: its options, what each of its tasks runs, and how it ends."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from train.launch.slurm import Job, _job, _reason, options, tasks
from train.specification import Execution, RunSpec, preset
from train.store import RunStore


def test_options_of_sbatch_are_taken_with_and_without_dashes() -> None:
    given = options(["partition=gpu", "--cpus-per-task=2", "gpus_per_node=1", "time=90"])
    assert given == {"partition": "gpu", "cpus-per-task": "2", "gpus-per-node": "1", "time": "90"}


def test_a_job_runs_its_command_with_its_environment_and_says_how_it_ended(tmp_path: Path) -> None:
    write = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(os.environ['OMP_NUM_THREADS'])"
    Job((sys.executable, "-c", write, str(tmp_path / "output")), {"OMP_NUM_THREADS": "3"})()
    assert (tmp_path / "output").read_text() == "3"
    with pytest.raises(SystemExit, match="7"):
        Job((sys.executable, "-c", "import sys; sys.exit(7)"))()


def test_a_job_has_the_tasks_of_its_nodes() -> None:
    assert tasks({}) == 1
    assert tasks({"ntasks-per-node": "4"}) == 4
    assert tasks({"nodes": "2", "ntasks-per-node": "4", "gpus-per-node": "4"}) == 8


def test_a_job_of_several_ranks_knows_that_they_are_several(tmp_path: Path) -> None:
    spec = RunSpec(preset=preset("tiny"), loss="terminal", readout="raw", execution=Execution(ranks=3, parallel="fsdp"))
    job = _job(spec, RunStore(tmp_path))
    assert (job.ranks, job.environment) == (3, {"OMP_NUM_THREADS": "1"})
    assert "torch.distributed.run" not in job.command  # its tasks are its processes


def test_why_a_job_failed_is_looked_for_in_the_logs_of_all_its_tasks(tmp_path: Path) -> None:
    for task, line in enumerate(("RuntimeError: connection closed by peer", "error: the disk is full", "")):
        (tmp_path / f"12_0_{task}_log.err").write_text(line)
    (tmp_path / "12_1_1_log.err").write_text("error: of another job")
    first = tmp_path / "12_0_0_log.err"
    assert _reason(first) == f"error: the disk is full (in {first})"


def test_a_task_that_was_signaled_calls_the_handler_and_ends_well() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        # Any other status, and srun would end the first task before it has queued the job again.
        Job((sys.executable, "-c", "import sys; sys.exit(75)"))()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]


def test_each_task_on_two_nodes_knows_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="needs the extra slurm")
    of_job = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "gpu[07,09]"}
    of_step = {"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8"}
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    write = f"import json, os, sys; json.dump([os.environ[name] for name in {names}], open(sys.argv[1], 'w'))"
    for name, value in {**of_job, **of_step}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    places = []
    for rank in (0, 5):
        monkeypatch.setenv("SLURM_PROCID", str(rank))
        monkeypatch.setenv("SLURM_LOCALID", str(rank % 4))
        Job((sys.executable, "-c", write, str(tmp_path / "output")), ranks=8)()
        places.append(json.loads((tmp_path / "output").read_text()))
    assert [place[:4] for place in places] == [["0", "0", "8", "gpu07"], ["5", "1", "8", "gpu07"]]
    assert places[0][4] == places[1][4]  # the ranks meet at one port
    assert 1024 <= int(places[0][4]) < 2**16
