"""The depth-use experiment: its arms, its metrics on models whose answers are known, and its runs in the store."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from loopverify.claims import CLAIMS, FIRST_EXIT, HOPS, claims_for, conditions_of, evaluate
from loopverify.claims.metrics import metric
from loopverify.errors import InputError
from loopverify.looped import Looped
from loopverify.tasks import Hops
from train.depth_use import PROTOCOL, ArmRun, Protocol, arm_runs, ensure, ensure_all, result
from train.depth_use.loop import accuracies, at_first_exit, train
from train.depth_use.protocol import ARMS
from train.store import RunStore

ROOT = Path(__file__).parents[2]
MICRO = Protocol(
    task=Hops(symbols=3, depth=2),
    d_model=16,
    heads=2,
    d_ff=16,
    batch=4,
    steps=4,
    history_every=2,
    history_instances=32,
    eval_instances=64,
)


def micro(condition: str = "hops/rmsnorm", seed: int = 0) -> ArmRun:
    return ArmRun(condition=condition, seed=seed, protocol=MICRO)


def test_the_arms_are_the_conditions_of_the_claims_and_differ_in_what_names_them() -> None:
    assert set(conditions_of(claims_for(["hops.depth"]))) == set(ARMS) == set(HOPS)
    base = ARMS["hops/rmsnorm"]
    differing = {
        name: {f.name for f in fields(arm) if getattr(arm, f.name) != getattr(base, f.name)}
        for name, arm in ARMS.items()
    }
    assert differing == {
        "hops/rmsnorm": set(),
        "hops/raw": {"readout"},
        "hops/penalty": {"loss"},
        "hops/final_only": {"readout"},
        "hops/inter_loop_norm": {"recurrence"},
        "hops/rmsnorm@5e-3": {"lr"},
        "hops/raw@7e-4": {"readout", "lr"},
    }
    assert all(arm.loss.startswith("per_loop") for arm in ARMS.values())
    with pytest.raises(InputError, match="unknown condition 'per_loop/raw'; expected one of: hops/rmsnorm"):
        ArmRun(condition="per_loop/raw")


def test_the_model_of_the_protocol() -> None:
    run = ArmRun(condition="hops/raw")
    # Attention 4 d^2 and SwiGLU 3 d d_ff with two norms, and an embedding and a head of 5 + 25 + 20 tokens.
    layer = 4 * 64**2 + 3 * 64 * 160 + 2 * 64
    assert sum(parameter.numel() for parameter in run.model().parameters()) == layer + 2 * 50 * 64
    assert (PROTOCOL.layers, PROTOCOL.loops, PROTOCOL.task.depth) == (1, 4, 4)


def answering(right_from: int) -> Looped:
    """A model of `Hops(symbols=3, depth=2)` that knows every answer of d steps from exit `right_from`·d on, and says 0
    before: the state carries the tokens and the number of loops done."""
    task = Hops(symbols=3, depth=2)

    def follow(tokens: torch.Tensor, loop: int) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, task.vocab_size)
        for row, (*pairs, question) in enumerate(tokens.tolist()):
            pointers = dict(divmod(pair - 3, 3) for pair in pairs)
            at, d = divmod(question - 12, 2)
            for _ in range(d + 1):
                at = pointers[at]
            logits[row, -1, at if loop >= right_from * (d + 1) else 0] = 1.0
        return logits

    return Looped(
        embed=lambda tokens: (torch.zeros(*tokens.shape, 1), tokens),
        step=lambda state, context, loop: state + 1,
        readout=lambda state, context, loop, loops: follow(context, loop),
        trained_loops=2,
    )


def test_accuracies_by_depth_and_exit() -> None:
    sequences = Hops(symbols=3, depth=2).draw(200, torch.Generator().manual_seed(0))
    found = accuracies(answering(1), sequences)
    deep = sequences.targets[sequences.depths == 2, -1]
    assert found == {
        "accuracy_1@1": 1.0,
        "accuracy_1@2": 1.0,
        "accuracy_2@1": pytest.approx(float((deep == 0).double().mean())),
        "accuracy_2@2": 1.0,
    }
    assert 0 < found["accuracy_2@1"] < 1


def test_exits_at_an_equal_first_exit() -> None:
    history = [
        {"step": 100, "ce@1": FIRST_EXIT + 0.01, "ce@2": 0.7},
        {"step": 200, "ce@1": FIRST_EXIT, "ce@2": 0.6},
        {"step": 300, "ce@1": 0.1, "ce@2": 0.0},
    ]
    assert at_first_exit(history, 2) == {"ce_matched@1": FIRST_EXIT, "ce_matched@2": 0.6, "step_matched": 200}
    assert all(math.isnan(value) for value in at_first_exit(history[:1], 2).values())


def test_training_learns_and_repeats() -> None:
    run = ArmRun(condition="hops/raw", protocol=replace(MICRO, steps=80, batch=32, history_every=20))
    events: list[dict[str, float]] = []
    module, metrics = train(run, events.append)
    again, same = train(run, lambda event: None)
    assert metrics == pytest.approx(same, nan_ok=True, rel=0, abs=0)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))
    assert [event["step"] for event in events] == [20, 40, 60, 80]
    assert events[-1]["ce@4"] < events[0]["ce@4"] - 0.3
    _, other = train(replace(run, seed=1), lambda event: None)
    assert other["ce@4"] != metrics["ce@4"]


def test_a_run_is_stored_once_and_judged(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    stored = ensure(micro(), store)
    made = result(stored)
    assert (made.preset, made.condition, made.seed, made.key) == ("hops", "hops/rmsnorm", 0, stored.key)
    assert {f"{kind}@{k}" for kind in ("ce", "norm", "ce_matched", "accuracy_2") for k in range(1, 5)} <= set(
        made.metrics
    )
    assert {metric(name).source for name in made.metrics} == {"training", "task"}
    assert ensure(micro(), store).path.stat().st_mtime_ns == stored.path.stat().st_mtime_ns
    assert ensure(micro(seed=1), store).key != stored.key
    lines = [json.loads(line) for line in (stored.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "eval", "eval", "end"]
    assert evaluate(CLAIMS["hops.depth.invariant.rmsnorm"], [made]).verdict in ("held", "contradicted")


def test_a_corrupt_run_is_trained_again(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    stored = ensure(micro(), store)
    before = result(stored)
    (stored.path / "result.json").write_text("{}")
    assert dict(result(ensure(micro(), store)).metrics) == pytest.approx(dict(before.metrics), nan_ok=True, rel=0)
    assert len(list((tmp_path / "corrupt").iterdir())) == 1


def test_what_is_missing_is_trained_in_processes(tmp_path: Path) -> None:
    store, told = RunStore(tmp_path), []
    ensure(micro(), store)
    runs = ensure_all([micro(), micro("hops/raw")], store, workers=1, say=told.append)
    assert [run.condition for run in runs] == ["hops/rmsnorm", "hops/raw"]
    assert len(told) == 1
    assert told[0].startswith("hops/raw seed 0: CE at exits ")
    with pytest.raises(InputError, match="workers is 0; expected an integer >= 1"):
        ensure_all([micro()], store, workers=0)
    assert [run.label for run in arm_runs(2)][:7:6] == ["hops/rmsnorm seed 0", "hops/raw@7e-4 seed 0"]


@pytest.mark.slow
def test_pytest_trains_and_judges_the_task_and_passes_over_other_presets(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "train", "-k", "depth_use"]
    for extra, told in (
        (["--preset", "small"], "not run: the task is for the preset tiny, not for small"),
        (["--steps", "1"], "report: "),
    ):
        done = subprocess.run(
            [*command, "--runs", str(tmp_path), *extra], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert told in done.stdout, done.stdout + done.stderr
    assert "Depth use on a task that needs depth" in done.stdout
    assert (tmp_path / "report-depth-use" / "report.html").exists()
    assert len(list((tmp_path / "runs").iterdir())) == len(ARMS)
