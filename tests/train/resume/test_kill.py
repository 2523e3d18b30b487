"""Runs killed at random moments, with the disk full, and by several workers at once: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.train.forks import ROOT, Forks

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("LOOPVERIFY_KILLS", "5"))
STEPS = 10 * (KILLS + 1)
SHAPE = {"steps": STEPS, "dropout": 0.1, "history_every": 100}


@pytest.fixture(scope="module")
def forks(request: pytest.FixtureRequest, text_file: Path) -> Iterator[Forks]:
    with Forks(text_file if request.param == "text" else None, **SHAPE) as forks:
        yield forks


@pytest.fixture(scope="module")
def uninterrupted(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, float]]:
    store = tmp_path_factory.mktemp("uninterrupted")
    assert forks.train(store, every=3600.0) == {"status": 0, "said": []}
    return outcome(store)


def outcome(store: Path) -> tuple[bytes, dict[str, float]]:
    """What a run came to: its weights, byte for byte, and its metrics."""
    (run,) = (store / "runs").iterdir()
    return (run / "model.safetensors").read_bytes(), json.loads((run / "result.json").read_text())["metrics"]


def events(store: Path) -> list[dict[str, object]]:
    (run,) = (store / "runs").iterdir()
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("forks", ["text", "task"], indirect=True)
def test_a_run_killed_at_random_moments_ends_as_if_it_never_was(
    forks: Forks, tmp_path: Path, uninterrupted: tuple[bytes, dict[str, float]]
) -> None:
    draw = random.Random(0)
    for kill in range(1, KILLS + 1):
        # A checkpoint after every step, so that most moments lie within the writing of one.
        output = forks.train(tmp_path, kill_at=10 * kill - draw.randrange(5), after=draw.uniform(0, 0.03))
        assert output["status"] == -signal.SIGKILL
        assert [text.split(" after step ")[0] for text in output["said"]] == (["resumed"] if kill > 1 else [])
    output = forks.train(tmp_path)
    assert output["status"] == 0
    assert output["said"][0].startswith("resumed after step")
    assert outcome(tmp_path) == uninterrupted
    assert not list((tmp_path / "partial").glob("*/*"))
    logged = Counter((event["event"], event.get("step")) for event in events(tmp_path) if event["event"] != "resume")
    steps = [("step", step) for step in range(10, STEPS + 1, 10)]
    evaluations = [("eval", step) for step in range(100, STEPS, 100)]
    assert logged == Counter([("start", None), *steps, *evaluations, ("eval", STEPS), ("end", STEPS)])


COMMAND = (sys.executable, "-m", "train", "--device", "cpu", "--checkpoint-every", "0", "--progress", "json")


def start(text: Path, store: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "--data", str(text), "--runs", str(store), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_signal_ends_a_run_with_status_75_and_a_checkpoint(text_file: Path, tmp_path: Path) -> None:
    with start(text_file, tmp_path, "--steps", "100000") as run:
        while not list(tmp_path.glob("partial/*/step-*")) and run.poll() is None:
            time.sleep(0.01)
        run.terminate()
        _, output = run.communicate()
    assert run.returncode == 75
    (step,) = re.findall(
        r"^stopped by SIGTERM after step (\d+); the same command resumes it$", output, flags=re.MULTILINE
    )
    assert list(tmp_path.glob(f"partial/*/step-{step}"))


def test_a_signal_before_the_first_step_ends_it_at_once(text_file: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, train.launch.run, train.__main__ as command\n"
        "train.launch.run.open_examples = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(command.main(sys.argv[1:]))"
    )
    arguments = [*COMMAND[3:], "--data", str(text_file), "--runs", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 75
    assert done.stderr.strip() == "stopped by SIGTERM before a step was done; the same command starts again"


WORKER = """
import json, random, sys
from pathlib import Path
from tests.train.micro import micro
from train.engine.checkpointing import CheckpointPolicy
from train.launch.run import ensure
from train.specification import RunSpec
from train.store import RunStore
store, text, number = RunStore(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
specs = [RunSpec(preset=micro(text), loss="per_loop", readout="rmsnorm", seed=seed) for seed in range(6)]
random.Random(number).shuffle(specs)
for spec in specs:
    report = lambda event: event["event"] == "end" and print(spec.seed, flush=True)
    ensure(spec, store, report, lambda output: None, policy=CheckpointPolicy(every=0))
"""


def test_four_workers_on_one_store_train_every_run_once(text_file: Path, tmp_path: Path) -> None:
    def worker(number: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, str(tmp_path), str(text_file), str(number)]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    victim, *others = [worker(number) for number in range(4)]
    assert victim.stdout is not None
    first = victim.stdout.readline().strip()  # its last step is done; it is about to be stored, or was
    victim.kill()
    ended = [first, *victim.communicate()[0].split()]
    trained = [seed for one in others for seed in one.communicate()[0].split()]
    assert [one.returncode for one in others] == [0, 0, 0]
    logs = [path.read_text().splitlines() for path in tmp_path.glob("runs/*/metrics.jsonl")]
    assert len(logs) == 6
    for log in logs:
        seen = Counter(json.loads(line)["event"] for line in log)
        assert (seen["start"], seen["step"], seen["end"]) == (1, 1, 1)
    assert len(trained) == len(set(trained))
    assert set(trained) | set(ended) == set("012345")
    assert not list(tmp_path.glob("partial/*/*"))
    assert not list(tmp_path.glob("corrupt/*"))


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare, to mount a small disk")
@pytest.mark.parametrize("forks", ["text"], indirect=True)
def test_a_disk_that_is_really_full(
    text_file: Path, tmp_path: Path, uninterrupted: tuple[bytes, dict[str, float]]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    script = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'
    if subprocess.run([*mount, script, str(disk), "true"], capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    code = "from tests.train.resume import test_kill; test_kill.on_a_full_disk()"
    arguments = [str(disk), sys.executable, "-c", code, str(disk), str(text_file), str(tmp_path / "result")]
    subprocess.run([*mount, script, *arguments], cwd=ROOT, check=True)
    assert outcome(tmp_path / "result") == uninterrupted


def on_a_full_disk() -> None:
    """Within the small disk: train, fill it, train on, make room, train to the end, and bring the result out."""
    disk, text, result = (Path(argument) for argument in sys.argv[1:])
    with Forks(text, **SHAPE) as forks:
        assert forks.train(disk, kill_at=5, after=0.01)["status"] == -signal.SIGKILL
        # What the killed one was writing: the next run would sweep it, and have room after all.
        shutil.rmtree(disk / ".temporary", ignore_errors=True)
        with (disk / "ballast").open("wb", buffering=0) as ballast:
            while free := shutil.disk_usage(disk).free:
                ballast.write(bytes(min(free, 1 << 16)))
        output = forks.train(disk)
        assert output["status"] == 2, output
        assert any("No space left on device; free some space" in text for text in output["said"][1:-1]), output
        (disk / "ballast").unlink()
        assert forks.train(disk)["status"] == 0
    shutil.copytree(disk / "runs", result / "runs")
