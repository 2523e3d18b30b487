"""Runs in the store: trained once, found again, retrained when corrupt; many at once; failures named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from loopverify.errors import InputError
from train.__main__ import main
from train.launch.fleet import ensure_all, workers_for
from train.launch.run import ensure, history, result
from train.machine.hardware import use_device
from train.specification import Execution, RunSpec, preset
from train.store import RunStore

ROOT = Path(__file__).parents[3]


def spec(text: Path, **changes: object) -> RunSpec:
    tiny = preset("tiny")
    shape = replace(tiny, steps=changes.pop("steps", 5), data=replace(tiny.data, source=str(text)))
    return RunSpec(**{"preset": shape, "loss": "per_loop", "readout": "rmsnorm", **changes})


def test_a_run_is_trained_once_and_then_found(text_file: Path, tmp_path: Path) -> None:
    store, events = RunStore(tmp_path), []
    first = ensure(spec(text_file), store, events.append)
    assert [event["event"] for event in events] == ["step", "eval", "end"]
    again = ensure(spec(text_file), store, lambda event: pytest.fail("trained again"))
    assert again.key == first.key
    run = result(again)
    assert (run.preset, run.condition, run.seed, run.key) == ("tiny", "per_loop/rmsnorm", 0, first.key)
    assert run.metrics == {name: value for name, value in events[-1].items() if name not in ("event", "step")}
    assert {"torch", "python", "device", "dtype", "threads", "text", "vocabulary"} <= set(run.facts)
    assert [event["step"] for event in history(again)] == [5]


def test_the_log_begins_with_the_whole_experiment(text_file: Path, tmp_path: Path) -> None:
    stored = ensure(spec(text_file), RunStore(tmp_path), lambda event: None)
    first = json.loads((stored.path / "metrics.jsonl").read_text().splitlines()[0])
    assert first["event"] == "start"
    assert first["spec"]["preset"]["d_model"] == 64
    assert first["facts"]["torch"]


def test_the_stored_weights_load_into_the_model_they_came_from(text_file: Path, tmp_path: Path) -> None:
    tied = spec(text_file)
    tied = replace(tied, preset=replace(tied.preset, tied_head=True))
    stored = ensure(tied, RunStore(tmp_path), lambda event: None)
    weights = load_file(stored.path / "model.safetensors")
    model = tied.model(len(weights["embedding.weight"]))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["head.weight"], [])  # the tied head is the embedding


def test_a_corrupt_run_is_named_moved_aside_and_trained_again(text_file: Path, tmp_path: Path) -> None:
    store, said = RunStore(tmp_path), []
    first = ensure(spec(text_file), store, lambda event: None)
    weights = first.path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    again = ensure(spec(text_file), store, lambda event: None, said.append)
    assert len(said) == 1
    assert "per_loop/rmsnorm seed 0" in said[0]
    assert "model.safetensors" in said[0]
    assert "will be trained again" in said[0]
    assert again.key == first.key
    assert list((tmp_path / "corrupt").iterdir())


def test_a_fleet_trains_what_is_missing_and_says_what_failed(text_file: Path, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    good = [spec(text_file, readout=readout) for readout in ("rmsnorm", "raw")]
    assert ensure_all(good, store) == {}
    begun = time.perf_counter()
    assert ensure_all(good, store) == {}
    assert time.perf_counter() - begun < 2  # nothing is started for runs that are there
    bad = spec(text_file, loss="per_loop+penalty", penalty=1e38, steps=30)
    failures = ensure_all([*good, bad], store)
    assert list(failures) == [bad]
    assert "exit status 1" in failures[bad]
    assert "diverged: per_loop+penalty=1e+38/rmsnorm seed 0: at step" in failures[bad]


def test_a_killed_parent_takes_its_training_processes_along(text_file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "train", "-k", "exits"]
    command += ["--runs", str(tmp_path / "runs"), "--data", str(text_file), "--steps", "100000"]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        children = wait_for(lambda: children_of(parent.pid), 60)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_for(lambda: not any(alive(child) for child in children), 30)
    finally:
        parent.kill()
        parent.wait()
    assert not list((tmp_path / "runs" / "runs").glob("*"))


def wait_for(condition, seconds: float):  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    return pytest.fail("waited in vain")


def children_of(pid: int) -> list[int]:
    """Of all threads: a fleet starts its processes from a pool."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for child in " ".join(lists).split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_workers_follow_the_threads_of_a_run() -> None:
    tiny = RunSpec(preset=preset("tiny"), loss="per_loop", readout="raw")
    cores = len(os.sched_getaffinity(0))
    assert workers_for(tiny) == cores
    assert workers_for(replace(tiny, preset=replace(tiny.preset, threads=cores + 1))) == 1
    assert workers_for(replace(tiny, preset=preset("small"))) == 1
    pair = Execution(ranks=2, parallel="ddp")
    assert workers_for(replace(tiny, execution=pair)) == max(1, cores // 2)


def test_as_many_runs_at_once_as_the_largest_of_them_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = RunSpec(preset=preset("tiny"), loss="per_loop", readout="raw")
    large = replace(tiny, preset=replace(tiny.preset, threads=len(os.sched_getaffinity(0))))
    asked: list[int] = []
    monkeypatch.setattr("train.launch.fleet.missing", lambda specs, store, say: list(specs))
    monkeypatch.setattr("train.launch.fleet._Fleet.run", lambda fleet, specs, workers: asked.append(workers) or {})
    for specs in ([tiny, large], [large, tiny], [tiny]):
        ensure_all(specs, RunStore(tmp_path))
    assert asked == [1, 1, workers_for(tiny)]


def test_no_workers_are_rejected(text_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="workers is 0; expected an integer >= 1"):
        ensure_all([spec(text_file)], RunStore(tmp_path), workers=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_rejected() -> None:
    with pytest.raises(InputError, match="device is 'cuda', but torch sees no CUDA device"):
        use_device("cuda")


def test_the_device_comes_with_its_reason() -> None:
    kind, reason = use_device("cpu")
    assert (kind, reason) == ("cpu", "cpu: as requested")
    kind, reason = use_device("auto")
    assert reason.startswith(f"{kind}: ")


COMMON = ("--steps", "3", "--device", "cpu")


def test_the_command_trains_and_prints_exits_and_norms(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", str(text_file), "--runs", str(tmp_path))
    assert main(["--loss", "per_loop", "--readout", "raw", "--penalty", "0.01", *data, *COMMON]) == 0
    output = capsys.readouterr().err
    assert "per_loop+penalty/raw seed 0 of preset tiny on cpu: as requested" in output
    assert "held-out cross-entropy at exits 1..4 (nats per token)" in output
    assert "mean tokenwise norm ||H_k||_2 at loops 1..4" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--preset", "huge"), "error: unknown preset 'huge'; expected one of: tiny, small, 44m, 129m, 1.4b"),
        (("--loss", "dense"), "error: unknown loss 'dense'"),
        (("--readout", "soft"), "error: unknown readout 'soft'"),
        (("--seed", str(10**30)), "seed is 1000000000000000000000000000000; expected an integer in 0..2^31 - 1"),
        (("--data", "/no/such/text"), "error: unknown text '/no/such/text'"),
    ],
)
def test_wrong_use_ends_with_status_2_and_says_what_is_wrong(
    tmp_path: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--runs", str(tmp_path), *COMMON]) == 2
    assert words in capsys.readouterr().err


def test_a_text_shorter_than_one_window_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "short.txt"
    text.write_text("a b c\n\na b d\n\na b e\n")
    assert main(["--data", str(text), "--runs", str(tmp_path / "runs"), *COMMON]) == 2
    assert "expected at least 33, which one window of 32 takes with its targets" in capsys.readouterr().err


def test_a_store_that_cannot_be_written_is_wrong_use(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["--data", str(text_file), "--runs", str(tmp_path / "file" / "runs"), *COMMON]) == 2
    output = capsys.readouterr().err
    assert "error: " in output
    assert str(tmp_path / "file") in output


def test_a_run_that_diverges_ends_with_status_1(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", str(text_file), "--runs", str(tmp_path), "--steps", "60", "--device", "cpu")
    assert main(["--penalty", "1e38", *data]) == 1
    assert "diverged: per_loop+penalty=1e+38/rmsnorm seed 0: at step" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*"))
