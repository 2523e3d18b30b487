"""Sweeps on a real Slurm of one node: a pre-empted run goes on where it was, a diverging one spoils no other."""

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


def test_a_sweep_of_four_runs_with_one_pre_emption_ends_with_four_runs(
    slurm: Mapping[str, str], text_file: Path, tmp_path: Path
) -> None:
    runs, logs = tmp_path / "runs", tmp_path / "runs" / "slurm"
    command = ("--conditions", *CONDITIONS, "--seeds", "0-1", "--steps", str(STEPS))
    with sweep(slurm, text_file, runs, *command) as parent:
        until(lambda: list(logs.glob("*_0_0_log.out")) and events(next(logs.glob("*_0_0_log.out"))))
        log = next(logs.glob("*_0_0_log.out"))
        job = log.name.removesuffix("_0_log.out")
        # In the background: scancel asks again and again while the job is on its way back to the queue.
        with subprocess.Popen(["scancel", "--signal=USR1", job], env=slurm, stderr=subprocess.DEVNULL) as cancel:
            until(lambda: "Requeued job" in log.read_text())
            (kept,) = runs.glob("partial/*/step-*")
            cancel.kill()
        # Slurm lets a requeued job wait for two minutes.
        until(lambda: "BeginTime" in said(slurm, "squeue", "--array", f"--jobs={job}", "--format=%r"))
        said(slurm, "scontrol", "update", f"JobId={job}", "StartTime=now")
        told, _ = parent.communicate(timeout=180)
    assert parent.returncode == 0, told
    assert f"4 of 4 runs are in {runs}" in told

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


def test_a_run_that_fails_is_named_and_the_others_go_on(
    slurm: Mapping[str, str], text_file: Path, tmp_path: Path
) -> None:
    conditions = ("per_loop+penalty=1e38/rmsnorm", "terminal/raw")
    with sweep(slurm, text_file, tmp_path / "runs", "--conditions", *conditions, "--steps", "30") as parent:
        told, _ = parent.communicate(timeout=180)
    assert parent.returncode == 1
    assert f"1 of 2 runs are in {tmp_path / 'runs'}" in told
    failed = re.search(r"failed: tiny per_loop\+penalty=1e\+38/rmsnorm seed 0: job (\d+_\d): (.*)", told)
    assert failed is not None, told
    assert "diverged" in failed[2]
    (stored,) = RunStore(tmp_path / "runs").runs()
    assert stored.spec["loss"] == "terminal"


def test_options_that_slurm_refuses_are_wrong_use(slurm: Mapping[str, str], text_file: Path, tmp_path: Path) -> None:
    with sweep(slurm, text_file, tmp_path / "runs", "partition=none", "--conditions", "terminal/raw") as parent:
        told, _ = parent.communicate(timeout=60)
    assert parent.returncode == 2
    assert "error: Slurm refuses the jobs" in told
    assert "invalid partition specified: none" in told
