"""Sweeps on this machine: every requested run is trained once, failures are named, many workers share one store."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import tyro

from loopverify.errors import InputError
from train.__main__ import main
from train.commands.sweep import Arguments, seeds_of, specs_of
from train.launch import fleet
from train.specification import Execution, RunSpec, preset
from train.store import RunStore

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "seeds"), [("0", [0]), ("0-2", [0, 1, 2]), ("3,0,5-6", [3, 0, 5, 6]), ("7-7", [7]), (" 1 , 2", [1, 2])]
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "2-1", "1-", "-1", "0..2", "0,,1"])
def test_other_seeds_are_rejected(text: str) -> None:
    with pytest.raises(InputError, match="expected numbers and ranges such as 0-2 or 0,3,5-7"):
        seeds_of(text)


def test_a_sweep_is_presets_by_seeds_by_conditions_each_once() -> None:
    conditions = ("terminal/raw", "per_loop+penalty=0.1/rmsnorm/damped", "terminal/raw")
    specs = specs_of(("tiny", "44m"), conditions, (0, 1), device="cpu", steps=9)
    assert len(specs) == 2 * 2 * 2
    assert [(spec.preset.name, spec.seed, spec.condition) for spec in specs[:4]] == [
        ("tiny", 0, "terminal/raw"),
        ("tiny", 0, "per_loop+penalty=0.1/rmsnorm/damped"),
        ("tiny", 1, "terminal/raw"),
        ("tiny", 1, "per_loop+penalty=0.1/rmsnorm/damped"),
    ]
    assert {spec.preset.steps for spec in specs} == {9}


def test_the_sweeps_of_the_page_name_the_runs_it_says() -> None:
    page = (ROOT / "docs" / "one-gpu-to-a-cluster.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(?:\$ )?python -m train sweep (.*)$", page, flags=re.MULTILINE)
    counts = []
    for line in lines:
        arguments = tyro.cli(Arguments, args=[*shlex.split(line), "--device", "cpu"])
        counts.append(len(arguments.specs()))
    assert counts == [2, 42, 2, 21, 42, 21, 1, 2]


@pytest.mark.parametrize(
    "condition",
    [
        "per_loop/rmsnorm",
        "terminal+penalty/raw/damped",
        "per_loop+penalty=0.1/rmsnorm/inter_loop_norm",
        "per_loop/raw/damped@lr=0.00012345678",
    ],
)
def test_a_condition_names_its_run_and_a_run_its_condition(condition: str) -> None:
    assert RunSpec.of_condition(preset("tiny"), condition, seed=3).condition == condition
    on_task = RunSpec.of_condition(preset("hops"), condition)
    assert on_task.condition == f"hops:{condition}"
    assert RunSpec.of_condition(preset("hops"), on_task.condition) == on_task


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("per_loop", "condition is 'per_loop'; expected loss/readout or loss/readout/recurrence"),
        ("per_loop+penalty=much/raw", "has the weight 'much' and the rate ''; expected numbers"),
        ("per_loop/raw@lr=", "has the weight '' and the rate ''; expected numbers"),
        ("per_loop/raw@lr=-1", "lr is -1.0; expected a number > 0"),
        ("hops:per_loop/raw", "condition 'hops:per_loop/raw' is on the task hops; preset 'tiny' is on text"),
        ("per_loop/soft", "unknown readout 'soft'"),
    ],
)
def test_a_condition_that_names_no_run_is_rejected(condition: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        RunSpec.of_condition(preset("tiny"), condition)


def test_a_sweep_trains_what_is_missing_and_names_what_fails(
    text_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    common = ("sweep", "--data", str(text_file), "--runs", str(tmp_path), "--steps", "30", "--device", "cpu")
    assert main([*common, "--conditions", "terminal/raw", "per_loop+penalty=1e38/rmsnorm", "--workers", "1"]) == 1
    output = capfd.readouterr().err
    assert "failed: tiny per_loop+penalty=1e+38/rmsnorm seed 0: exit status 1: diverged" in output
    assert f"1 of 2 runs are in {tmp_path}" in output
    (stored,) = RunStore(tmp_path).runs()
    before = stored.path.stat().st_mtime_ns
    assert main([*common, "--conditions", "terminal/raw", "--workers", "1"]) == 0
    assert f"1 of 1 runs are in {tmp_path}" in capfd.readouterr().err
    assert stored.path.stat().st_mtime_ns == before  # found, not trained


def test_wrong_use_of_a_sweep_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("sweep", "--runs", str(tmp_path), "--device", "cpu")
    for arguments, words in (
        (("--presets", "huge"), "unknown preset 'huge'"),
        (("--presets",), "no presets; expected at least one"),
        (("--presets", "tiny", "hops", "--data", "pydoc"), "data is 'pydoc', but preset 'hops' has no text"),
        (("--conditions", "hops:per_loop/raw"), "is on the task hops; preset 'tiny' is on text"),
        (("--seeds", "x"), "seeds are 'x'"),
        (("--seeds", "0-999999999"), "seeds are '0-999999999'; expected at most 10,000 in a range"),
        (("--workers", "0"), "workers is 0"),
        (("--slurm", "gpu"), "slurm option 'gpu'; expected KEY=VALUE with an option of sbatch"),
        (("--slurm", "gpus=1", "--workers", "0"), "workers is 0; expected an integer >= 1"),
        (
            ("--slurm", "gpus=1", "--poll", "-1"),
            "poll is -1; expected seconds between two queries, in (0, 3600]",
        ),
        (("--slurm", "gpus=1", "--poll", "nan"), "poll is nan"),
        (("--slurm", "time=4:00:00"), "slurm option time=4:00:00; expected whole minutes, such as time=240"),
    ):
        assert main([*common, "--steps", "1", *arguments]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", [["sweep", "--workers", "1"], ["--progress", "none"]])
def test_what_is_interrupted_at_the_keyboard_says_how_it_goes_on(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("train.commands.sweep.ensure_all", interrupted)
    monkeypatch.setattr("train.__main__.ensure", interrupted)
    assert main([*command, "--runs", str(tmp_path), "--device", "cpu"]) == 130
    output = capsys.readouterr().err
    assert "interrupted; the same command resumes from what is in the store" in output
    assert "Traceback" not in output


def test_every_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = RunSpec(preset=preset("tiny"), loss="terminal", readout="raw", device="cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert fleet.workers_for(on_gpu) == 3
    places = fleet._places(on_gpu, 3)
    assert [places.get()["CUDA_VISIBLE_DEVICES"] for _ in range(3)] == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,GPU-abc")
    places = fleet._places(on_gpu, 4)
    assert [places.get()["CUDA_VISIBLE_DEVICES"] for _ in range(4)] == ["4", "6", "GPU-abc", "4"]
    pairs = replace(on_gpu, execution=Execution(ranks=2, parallel="ddp"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 5)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    assert fleet.workers_for(pairs) == 2
    places = fleet._places(pairs, 3)
    assert [places.get()["CUDA_VISIBLE_DEVICES"] for _ in range(3)] == ["0,1", "2,3", "0,1"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(InputError, match="a run takes 2 GPUs, one per process, and torch sees 1; use fewer --ranks"):
        fleet.workers_for(pairs)
    assert fleet._places(RunSpec(preset=preset("tiny"), loss="terminal", readout="raw"), 1).get() == {}


SHARED = """
import os
from pathlib import Path
import pytest
from train.specification import preset
from train.launch.run import ensure
from train.specification import RunSpec
from train.store import RunStore

@pytest.mark.parametrize("again", range(4))
@pytest.mark.parametrize("readout", ["rmsnorm", "raw", "layernorm"])
def test_run(readout, again):
    spec = RunSpec(preset=preset("tiny", source=os.environ["TEXT"], steps=40), loss="terminal", readout=readout)
    killed = Path(os.environ["RUNS"]) / f"killed-{readout}"
    def report(event):
        if event["event"] == "step" and readout == "raw" and not killed.exists():
            killed.touch()
            os._exit(1)  # in the middle of its run, with the lock
        if event["event"] == "end":
            with open(Path(os.environ["RUNS"]) / "trained", "a") as trained:
                trained.write(readout + "\\n")
    ensure(spec, RunStore(os.environ["RUNS"]), report)
"""


@pytest.mark.slow
def test_workers_of_xdist_share_a_store_no_run_is_trained_twice_and_none_is_lost(
    text_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "test_shared.py").write_text(SHARED)
    runs = tmp_path / "runs"
    runs.mkdir()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "3", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, "-c", os.devnull, str(tmp_path / "test_shared.py")],
        cwd=ROOT,
        env={**os.environ, "TEXT": str(text_file), "RUNS": str(runs), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "11 passed" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout  # that of the worker that died
    assert Counter((runs / "trained").read_text().split()) == {"rmsnorm": 1, "raw": 1, "layernorm": 1}
    assert len(list(RunStore(runs).runs())) == 3
