"""Sweeps on a real Slurm of one node: a pre-empted run resumes, and a diverging run affects no other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.train.launch.slurm.cluster import cluster, lacking
from train.__main__ import main
from train.commands.sweep import specs_of
from train.launch.run import ensure
from train.store import RunStore

ROOT = Path(__file__).parents[4]
STEPS = 200
CONDITIONS = ("per_loop/rmsnorm", "terminal/raw")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif((reason := lacking()) is not None, reason=f"needs a Slurm of its own: {reason}"),
]
pytest.importorskip("submitit", reason="needs the extra slurm")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with cluster(tmp_path_factory.mktemp("cluster")) as environment:
        yield environment


def sweep(environment: Mapping[str, str], text: Path, runs: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "train", "sweep", "--data", str(text), "--runs", str(runs), "--poll", "0.5"),
            *("--slurm", "time=10", "cpus-per-task=1", *arguments),
        ],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def said(environment: Mapping[str, str], *command: str) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def events(log: Path) -> list[dict[str, object]]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def pre_empt(environment: Mapping[str, str], runs: Path, log: Path) -> Path:
    """Ask the job of a log to stop, and let it go on; returns the checkpoint that it kept."""
    until(lambda: events(log))
    job = re.sub(r"_\d+_log.out", "", log.name)
    # In the background: scancel asks again and again while the job is on its way back to the queue.
    with subprocess.Popen(["scancel", "--signal=USR1", job], env=environment, stderr=subprocess.DEVNULL) as cancel:
        until(lambda: "Requeued job" in log.read_text())
        (kept,) = runs.glob("partial/*/step-*")
        cancel.kill()
    # Slurm lets a requeued job wait for two minutes.
    until(lambda: "BeginTime" in said(environment, "squeue", "--array", f"--jobs={job}", "--format=%r"))
    said(environment, "scontrol", "update", f"JobId={job}", "StartTime=now")
    return kept


def only(folder: Path, pattern: str) -> Path:
    """The file of this name, as soon as there is one."""
    until(lambda: list(folder.glob(pattern)))
    (found,) = folder.glob(pattern)
    return found


def test_a_sweep_of_four_runs_with_one_pre_emption_ends_with_four_runs(
    slurm: Mapping[str, str], text_file: Path, tmp_path: Path
) -> None:
    runs, logs = tmp_path / "runs", tmp_path / "runs" / "slurm"
    command = ("--conditions", *CONDITIONS, "--seeds", "0-1", "--steps", str(STEPS))
    with sweep(slurm, text_file, runs, *command) as parent:
        kept = pre_empt(slurm, runs, log := only(logs, "*_0_0_log.out"))
        output, _ = parent.communicate(timeout=180)
    assert parent.returncode == 0, output
    assert f"4 of 4 runs are in {runs}" in output

    step = int(kept.name.removeprefix("step-"))
    assert 0 < step < STEPS
    errors = log.with_suffix(".err").read_text()
    assert f"stopped by SIGUSR1 after step {step}" in errors
    assert f"resumed after step {step} from {kept}" in errors
    specs = specs_of(("tiny",), CONDITIONS, (0, 1), device="cpu", source=str(text_file), steps=STEPS)
    stored = {run.spec["loss"] + str(run.spec["seed"]): run for run in RunStore(runs).runs()}
    assert set(stored) == {"per_loop0", "per_loop1", "terminal0", "terminal1"}
    for log in logs.glob("*_log.out"):
        assert [event["event"] for event in events(log)].count("end") == 1  # each was trained to its end once
    uninterrupted = ensure(specs[0], RunStore(tmp_path / "alone"), lambda event: None)
    weights = [(run.path / "model.safetensors").read_bytes() for run in (stored["per_loop0"], uninterrupted)]
    assert weights[0] == weights[1]


def test_a_run_of_two_ranks_with_one_pre_emption_ends_as_one_that_was_never_interrupted(
    slurm: Mapping[str, str], text_file: Path, tmp_path: Path
) -> None:
    runs, alone = tmp_path / "runs", tmp_path / "alone"
    command = ("--conditions", "per_loop/rmsnorm", "--steps", "120", "--parallel", "ddp")
    with sweep(slurm, text_file, runs, "nodes=1", "ntasks-per-node=2", *command) as parent:
        kept = pre_empt(slurm, runs, log := only(runs / "slurm", "*_0_log.out"))
        output, _ = parent.communicate(timeout=180)
    assert parent.returncode == 0, output
    step = int(kept.name.removeprefix("step-"))
    assert 0 < step < 120
    errors = [path.read_text() for path in sorted(log.parent.glob("*_log.err"))]
    assert [text.count(f"stopped by SIGUSR1 after step {step}") for text in errors] == [1, 1]
    assert f"resumed after step {step} from {kept}" in errors[0]
    outputs = [path.read_text() for path in sorted(log.parent.glob("*_log.out"))]
    assert "".join(outputs).count("Requeued job") == 1
    assert [event["event"] for event in events(log)].count("end") == 1

    main(["sweep", "--data", str(text_file), "--runs", str(alone), "--device", "cpu", "--ranks", "2", *command])
    stored, uninterrupted = (next(RunStore(folder).runs()) for folder in (runs, alone))
    assert stored.key == uninterrupted.key
    weights = [(run.path / "model.safetensors").read_bytes() for run in (stored, uninterrupted)]
    assert weights[0] == weights[1]


def test_a_rank_that_fails_ends_its_job_and_is_named(slurm: Mapping[str, str], text_file: Path, tmp_path: Path) -> None:
    conditions = ("--conditions", "per_loop+penalty=1e38/rmsnorm", "--steps", "30")
    with sweep(slurm, text_file, tmp_path / "runs", "ntasks-per-node=2", *conditions) as parent:
        output, _ = parent.communicate(timeout=180)
    assert parent.returncode == 1
    assert re.search(r"failed: tiny per_loop\+penalty=1e\+38/rmsnorm seed 0: job \d+: diverged: ", output), output


def test_a_run_that_fails_is_named_and_the_others_go_on(
    slurm: Mapping[str, str], text_file: Path, tmp_path: Path
) -> None:
    conditions = ("per_loop+penalty=1e38/rmsnorm", "terminal/raw")
    with sweep(slurm, text_file, tmp_path / "runs", "--conditions", *conditions, "--steps", "30") as parent:
        output, _ = parent.communicate(timeout=180)
    assert parent.returncode == 1
    assert f"1 of 2 runs are in {tmp_path / 'runs'}" in output
    failed = re.search(r"failed: tiny per_loop\+penalty=1e\+38/rmsnorm seed 0: job (\d+_\d): (.*)", output)
    assert failed is not None, output
    assert "diverged" in failed[2]
    (stored,) = RunStore(tmp_path / "runs").runs()
    assert stored.spec["loss"] == "terminal"


def test_options_that_slurm_rejects_are_wrong_use(slurm: Mapping[str, str], text_file: Path, tmp_path: Path) -> None:
    with sweep(slurm, text_file, tmp_path / "runs", "partition=none", "--conditions", "terminal/raw") as parent:
        output, _ = parent.communicate(timeout=60)
    assert parent.returncode == 2
    assert "error: Slurm rejects the jobs" in output
    assert "invalid partition specified: none" in output
