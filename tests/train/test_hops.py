"""The depth-use experiment: its protocol, and that its runs are trained, resumed, stored and judged as any other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from loopverify.claims import CLAIMS, FIRST_EXIT, HOPS, claims_for, conditions_of, evaluate
from loopverify.cli.runs import read_studies
from loopverify.tasks import Hops
from tests.train.micro import micro, micro_hops
from tests.train.stops import After
from tests.train.study.test_measure import ONE_OF_EACH
from train.__main__ import main
from train.data import TaskSpec
from train.engine.checkpointing import CheckpointPolicy
from train.launch.fleet import Progress, ensure_all
from train.launch.run import ensure, history, result
from train.resume.preemption import PreemptedError
from train.specification import Preset, RunSpec, preset
from train.store import RunStore, StoredRun
from train.study.measure import measured
from train.study.study import Study

ROOT = Path(__file__).parents[2]
RMSNORM = RunSpec(preset=micro_hops(), loss="per_loop", readout="rmsnorm")


def trained(spec: RunSpec, store: RunStore, policy: CheckpointPolicy | None = None) -> StoredRun:
    return ensure(spec, store, lambda event: None, lambda text: None, policy=policy)


def test_the_arms_are_the_conditions_of_the_claims_and_differ_in_what_names_them() -> None:
    assert set(conditions_of(claims_for(["hops.depth"]))) == set(HOPS)
    specs = [RunSpec.of_condition(preset("hops"), condition) for condition in HOPS]
    assert [spec.condition for spec in specs] == list(HOPS)
    arms = {(spec.loss, spec.readout, spec.recurrence, spec.learning_rate(50, 3000)) for spec in specs}
    assert arms == {
        ("per_loop", "rmsnorm", "residual", 2e-3),
        ("per_loop", "raw", "residual", 2e-3),
        ("per_loop+penalty", "rmsnorm", "residual", 2e-3),
        ("per_loop", "final_only", "residual", 2e-3),
        ("per_loop", "rmsnorm", "inter_loop_norm", 2e-3),
        ("per_loop", "rmsnorm", "residual", 5e-3),
        ("per_loop", "raw", "residual", 7e-4),
    }


def test_the_protocol() -> None:
    p = preset("hops")
    assert p.data == TaskSpec(task=Hops(symbols=5, depth=4))
    assert (p.d_model, p.layers, p.heads, p.d_ff, p.loops, p.tied_head, p.dropout) == (64, 1, 4, 160, 4, False, 0.0)
    assert (p.batch, p.steps, p.weight_decay, p.grad_clip, p.threads) == (64, 3000, 0.1, 1.0, 1)
    assert (p.eval_windows, p.history_windows, p.history_every, p.first_exit) == (4096, 1024, 100, FIRST_EXIT)
    assert [p.learning_rate(step, 3000) for step in (25, 50, 3000)] == [1e-3, 2e-3, 2e-3]
    # Attention 4 d^2 and SwiGLU 3 d d_ff with two norms, and an embedding and a head of 5 + 25 + 20 tokens.
    layer = 4 * 64**2 + 3 * 64 * 160 + 2 * 64
    module = RunSpec(preset=p, loss="per_loop", readout="raw").model(p.data.vocab_max)
    assert sum(parameter.numel() for parameter in module.parameters()) == layer + 2 * 50 * 64


def test_training_learns_and_repeats(tmp_path: Path) -> None:
    spec = replace(RMSNORM, readout="raw", preset=micro_hops(steps=80, batch=32, history_every=20))
    first, again = (trained(spec, RunStore(tmp_path / name)) for name in ("first", "again"))
    assert (first.path / "model.safetensors").read_bytes() == (again.path / "model.safetensors").read_bytes()
    assert result(first).metrics == pytest.approx(dict(result(again).metrics), nan_ok=True, rel=0, abs=0)
    evaluations = history(first)
    assert [event["step"] for event in evaluations] == [20, 40, 60, 80]
    assert evaluations[-1]["ce@4"] < evaluations[0]["ce@4"] - 0.3


def test_a_run_stopped_twice_ends_as_if_it_never_was(tmp_path: Path) -> None:
    spec = replace(RMSNORM, preset=micro_hops(steps=8, first_exit=100.0))  # which the evaluation at step 2 meets
    whole = trained(spec, RunStore(tmp_path / "whole"))
    store = RunStore(tmp_path / "stopped")
    for _ in range(2):
        with pytest.raises(PreemptedError):
            trained(spec, store, CheckpointPolicy(every=0, preemption=After(3)))
    resumed = trained(spec, store)
    lines = [json.loads(line) for line in (resumed.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "resume"] == [3, 6]
    assert (resumed.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert result(resumed).metrics == result(whole).metrics
    assert result(whole).metrics["step_matched"] == 2


def test_a_run_is_stored_once_and_judged(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    stored = trained(RMSNORM, store)
    made = result(stored)
    assert (made.preset, made.condition, made.key) == ("hops", "hops:per_loop/rmsnorm", stored.key)
    assert made.facts["task"] == "hops (symbols 3, depth 2)"
    assert {f"{kind}@{k}" for kind in ("ce", "norm", "ce_matched", "accuracy_2") for k in range(1, 5)} <= set(
        made.metrics
    )
    assert trained(RMSNORM, store).path.stat().st_mtime_ns == stored.path.stat().st_mtime_ns
    assert trained(replace(RMSNORM, seed=1), store).key != stored.key
    assert evaluate(CLAIMS["hops.depth.invariant.rmsnorm"], [made]).verdict in ("held", "contradicted")
    # A claim on text is no claim on this run, whose loss and readout are those of a row of Table 2.
    assert evaluate(CLAIMS["P1.T5.invariant.rmsnorm"], [made]).verdict == "not run"


def test_another_learning_rate_trains_another_model(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    faster = RunSpec.of_condition(micro_hops(), "per_loop/rmsnorm@lr=5e-3")
    plain, fast = trained(RMSNORM, store), trained(faster, store)
    assert result(fast).condition == "hops:per_loop/rmsnorm@lr=0.005"
    assert fast.spec["lr"] == 5e-3
    weights = [load_file(run.path / "model.safetensors")["embedding.weight"] for run in (plain, fast)]
    assert not weights[0].equal(weights[1])
    lines = [json.loads(line) for line in (fast.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in lines if line["event"] == "step"] == [5e-3 * 4 / 50]


def test_every_measurement_on_text_also_works_on_a_task(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    stored = trained(RMSNORM, store)
    said: list[str] = []
    (run,) = measured({RMSNORM: stored}, {RMSNORM.condition: ONE_OF_EACH}, store, said.append)
    assert not [text for text in said if "no measurement" in text]
    for k in (1, 2, 3, 4):
        assert run.metrics[f"ce_run@{k}"] == pytest.approx(run.metrics[f"ce@{k}"], abs=1e-5)


class Watching(Progress):
    """Who watches a fleet."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, str | None]] = []

    def ended(self, spec: RunSpec, failure: str | None) -> None:
        self.ends.append((spec.label, failure))


def test_a_fleet_trains_what_is_missing_and_a_sweep_finds_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store, watching = RunStore(tmp_path), Watching()
    study = Study(preset=preset("hops", steps=1), seeds=1, store=store)
    conditions = ("hops:per_loop/rmsnorm", "hops:per_loop/raw@lr=0.0007")
    trained(study.specs(conditions[:1])[0], store)
    assert ensure_all(study.specs(conditions), store, workers=1, progress=watching) == {}
    assert watching.ends == [("hops:per_loop/raw@lr=0.0007 seed 0", None)]
    assert {spec.condition for spec in study.stored(conditions)} == set(conditions)
    sweep = ["sweep", "--presets", "hops", "--steps", "1", "--device", "cpu", "--runs", str(tmp_path)]
    assert main([*sweep, "--conditions", "per_loop/rmsnorm", "per_loop/raw@lr=7e-4"]) == 0
    assert "2 of 2 runs are in" in capfd.readouterr().err
    assert len(list(store.runs())) == 2
    (read,) = read_studies(tmp_path)  # another learning rate is another condition of one study
    assert {run.condition for run in read.runs} == set(conditions)


def test_the_command_trains_a_run_on_the_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--preset", "hops", "--steps", "1", "--device", "cpu", "--progress", "none", "--runs", str(tmp_path)]
    assert main([*command, "--loss", "per_loop", "--readout", "rmsnorm", "--lr", "5e-3"]) == 0
    assert "hops:per_loop/rmsnorm@lr=0.005 seed 0 of preset hops" in " ".join(capsys.readouterr().err.split())
    assert [result(run).condition for run in RunStore(tmp_path).runs()] == ["hops:per_loop/rmsnorm@lr=0.005"]


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (["--preset", "hops", "--data", "pydoc"], "data is 'pydoc', but preset 'hops' has no text"),
        (["data", "--preset", "hops"], "preset 'hops' has no text to tokenize"),
        (["reproduce", "T2", "--preset", "hops"], "preset is 'hops', on the task hops; expected one on text"),
    ],
    ids=["train", "data", "reproduce"],
)
def test_what_takes_a_text_is_rejected(
    command: list[str], output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--runs", str(tmp_path / "runs")]) == 2
    assert output in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_of_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dry-run", "--preset", "hops", "--readout", "raw"]) == 0
    assert "hops, hops:per_loop/raw: 53,632 parameters" in capsys.readouterr().out


def test_a_study_covers_the_conditions_on_its_own_data(text_file: Path) -> None:
    on: Callable[[Preset], Study] = lambda p: Study(preset=p, seeds=1, store=RunStore("nowhere"))  # noqa: E731
    text, task = on(micro(text_file)), on(micro_hops())
    assert [text.covers(condition) for condition in ("per_loop/raw", "hops:per_loop/raw")] == [True, False]
    assert [task.covers(condition) for condition in ("per_loop/raw", "hops:per_loop/raw")] == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "output", "runs"),
    [
        (["-k", "hops", "--preset", "small"], "use the preset tiny or hops instead of small", 0),
        (["-k", "T6 or uses", "--data", "pydoc"], "select it with -k hops", 2),
        (["-k", "T6", "--preset", "hops"], "the claim is on text, and the preset hops trains on a task", 0),
        (["-k", "hops"], f"{len(claims_for(['hops.depth']))} claims: ", len(HOPS)),
        (["-k", "uses.raw", "--preset", "hops"], "1 claim: ", 1),
    ],
    ids=["other preset", "not selected", "other claims", "by name", "by preset"],
)
def test_pytest_trains_the_task_only_when_selected(options: list[str], output: str, runs: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rs", "train", "--steps", "1"]
    done = subprocess.run(
        [*command, "--runs", str(tmp_path), *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert output in " ".join(done.stdout.split()), done.stdout + done.stderr
    assert len(list(tmp_path.glob("runs/*"))) == runs
    assert (tmp_path / "report-hops" / "report.html").exists() == (runs in (1, len(HOPS)))
