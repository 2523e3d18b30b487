"""Checkpoints: a run resumes bit for bit from the newest valid one, and reports corrupt ones."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from loopverify.errors import InputError
from tests.train.damage import FLIPS, damaged
from tests.train.micro import micro
from tests.train.stops import After
from train.engine.checkpointing import CheckpointPolicy
from train.engine.loop import DivergedError
from train.engine.open import open_examples
from train.launch.run import ensure, result
from train.machine.distributed import ALONE
from train.resume.checkpoint import Checkpoints, open_checkpoint
from train.resume.preemption import PreemptedError
from train.specification import RunSpec
from train.store import RunStore, StoredRun, StoreError

STEPS = 8


@dataclass
class Bench:
    """One run in one store, to be stopped and resumed."""

    spec: RunSpec
    store: RunStore

    def __post_init__(self) -> None:
        self.said: list[str] = []
        self.events: list[dict[str, object]] = []

    @property
    def partial(self) -> Path:
        key = self.store.key(self.spec.determinants(open_examples(self.spec, self.store)))
        return self.store.root / "partial" / key

    def run(self, policy: CheckpointPolicy | None = None) -> StoredRun:
        return ensure(self.spec, self.store, self.events.append, self.said.append, policy=policy)

    def stop_after(self, steps: int, every: float = 0.0) -> None:
        with pytest.raises(PreemptedError, match=r"stopped by SIGTERM after step \d+; the same command resumes it"):
            self.run(CheckpointPolicy(every=every, preemption=After(steps)))

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in self.partial.iterdir())


@pytest.fixture
def bench(text_file: Path, tmp_path: Path) -> Bench:
    spec = RunSpec(preset=micro(text_file, steps=STEPS, dropout=0.1), loss="per_loop", readout="rmsnorm")
    return Bench(spec, RunStore(tmp_path / "store"))


def same(one: StoredRun, other: StoredRun) -> bool:
    a, b = (load_file(run.path / "model.safetensors") for run in (one, other))
    return (
        a.keys() == b.keys()
        and all(torch.equal(a[name], b[name]) for name in a)
        and result(one).metrics == result(other).metrics
    )


@pytest.fixture
def uninterrupted(bench: Bench, tmp_path: Path) -> StoredRun:
    return Bench(bench.spec, RunStore(tmp_path / "uninterrupted")).run()


class TestResuming:
    @pytest.mark.parametrize(
        ("loss", "readout", "recurrence"),
        [
            ("per_loop", "rmsnorm", "residual"),
            ("exit_weighted+penalty", "tapered", "damped"),  # buffers, scalars, a gate
        ],
    )
    def test_a_run_stopped_twice_ends_as_if_it_never_was(
        self, text_file: Path, tmp_path: Path, loss: str, readout: str, recurrence: str
    ) -> None:
        shape = micro(text_file, steps=STEPS, dropout=0.1, tied_head=True)
        spec = RunSpec(preset=shape, loss=loss, readout=readout, recurrence=recurrence)
        bench = Bench(spec, RunStore(tmp_path / "store"))
        for _ in range(2):
            bench.stop_after(3)
            assert bench.store.get(spec.determinants(open_examples(spec, bench.store))) is None
        stored = bench.run()
        assert [event["step"] for event in bench.events if event["event"] == "resume"] == [3, 6]
        assert same(stored, Bench(spec, RunStore(tmp_path / "uninterrupted")).run())

    def test_the_log_holds_every_event_once_and_the_interruption(self, bench: Bench) -> None:
        bench.stop_after(5)
        lines = [json.loads(line) for line in (bench.run().path / "metrics.jsonl").read_text().splitlines()]
        assert [line["event"] for line in lines] == ["start", "resume", "step", "eval", "end"]
        assert lines[1] == {"event": "resume", "step": 5}
        assert bench.said == [f"resumed after step 5 from {bench.partial / 'step-5'}"]

    def test_the_last_two_are_kept_and_none_once_the_run_is_stored(self, bench: Bench) -> None:
        bench.stop_after(5)
        assert bench.checkpoints() == ["step-4", "step-5"]
        bench.run()
        assert not bench.partial.exists()

    def test_they_are_written_by_time(self, bench: Bench) -> None:
        bench.stop_after(5, every=3600.0)
        assert bench.checkpoints() == ["step-5"]  # that of the signal

    def test_no_part_of_it_is_a_pickle(self, bench: Bench) -> None:
        bench.stop_after(2)
        files = {path.relative_to(bench.partial).as_posix() for path in bench.partial.rglob("*") if path.is_file()}
        names = ("manifest.json", "metrics.jsonl", "random/0.safetensors", "state.safetensors")
        assert files == {f"step-{step}/{name}" for step in (1, 2) for name in names}

    def test_a_run_that_diverges_keeps_none(self, text_file: Path, tmp_path: Path) -> None:
        shape = micro(text_file, steps=STEPS, lr=1e30, warmup_steps=1)
        bench = Bench(RunSpec(preset=shape, loss="per_loop", readout="rmsnorm"), RunStore(tmp_path))
        with pytest.raises(DivergedError, match="at step 2"):
            bench.run(CheckpointPolicy(every=0))
        assert not bench.partial.exists()


class TestDamage:
    def test_no_flipped_bit_and_no_lost_tail_of_any_file_goes_unseen(self, bench: Bench) -> None:
        bench.stop_after(1)
        (path,) = bench.partial.iterdir()
        whole, seen = open_checkpoint(path), Counter[str]()
        for name, what in damaged(path):
            with pytest.raises(InputError) as caught:
                pytest.fail(f"{name}, {what}: loaded {open_checkpoint(path)}")
            assert f" {name} " in str(caught.value), what
            seen[name] += 1
        assert set(seen) == {"manifest.json", "metrics.jsonl", "random/0.safetensors", "state.safetensors"}
        assert min(seen.values()) > FLIPS
        assert open_checkpoint(path) == whole

    def test_a_torn_one_is_named_and_moved_aside_and_the_one_before_resumed(
        self, bench: Bench, uninterrupted: StoredRun
    ) -> None:
        bench.stop_after(5)
        state = bench.partial / "step-5" / "state.safetensors"
        state.write_bytes(state.read_bytes()[:1000])
        stored = bench.run()
        assert bench.said == [
            f"the checkpoint {bench.partial / 'step-5'} is corrupt: state.safetensors has 1000 bytes instead of "
            f"{bench.said[0].split('instead of ')[1].split('.')[0]}. Moved to "
            f"{bench.store.root / 'corrupt' / bench.partial.name}-step-5-1; the previous one is used",
            f"resumed after step 4 from {bench.partial / 'step-4'}",
        ]
        assert same(stored, uninterrupted)

    def test_without_a_whole_one_the_run_begins_again(self, bench: Bench, uninterrupted: StoredRun) -> None:
        bench.stop_after(3)
        for manifest in bench.partial.glob("*/manifest.json"):
            manifest.unlink()
        stored = bench.run()
        assert [text.split(": ")[1].split(".")[0] for text in bench.said] == ["manifest"] * 2
        assert same(stored, uninterrupted)

    def test_one_of_another_step_is_not_taken_for_its_own(self, bench: Bench, uninterrupted: StoredRun) -> None:
        bench.stop_after(3)
        shutil.copytree(bench.partial / "step-2", bench.partial / "step-7")
        stored = bench.run()
        assert "step-7 is corrupt: manifest.json is that of step 2 of run" in bench.said[0]
        assert "resumed after step 3" in bench.said[1]
        assert same(stored, uninterrupted)


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, call: str) -> Iterator[None]:
    """Every call of a function of the system fails for want of space."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        yield


class TestWriting:
    @pytest.mark.parametrize("call", ["fsync", "rename"])
    def test_a_full_disk_is_reported_and_neither_ends_the_run_nor_harms_what_was_there(
        self, bench: Bench, uninterrupted: StoredRun, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        bench.stop_after(2)
        with full_disk(monkeypatch, call):
            bench.stop_after(2)
        assert bench.checkpoints() == ["step-1", "step-2"]
        assert [text.split(":")[0] for text in bench.said[1:]] == ["no checkpoint of step 3", "no checkpoint of step 4"]
        assert "No space left on device; free some space or choose another place" in bench.said[1]
        assert list((bench.store.root / ".temporary").iterdir()) == []
        assert same(bench.run(), uninterrupted)

    @pytest.mark.parametrize("fill", [lambda folder: (folder / "x").write_text("half"), lambda folder: None])
    def test_an_error_while_it_is_written_leaves_nothing(self, tmp_path: Path, fill: Callable[[Path], object]) -> None:
        checkpoints = Checkpoints(tmp_path, "key", ranks=ALONE)

        def fail(folder: Path) -> None:
            fill(folder)
            raise RuntimeError("killed")

        with suppress(RuntimeError):
            checkpoints.save(1, fail, run={}, progress={}, log="")
        assert checkpoints.steps() == []
        assert list((tmp_path / ".temporary").iterdir()) == []

    def test_a_place_that_cannot_be_written_is_a_store_error(self, tmp_path: Path) -> None:
        (tmp_path / "partial").write_text("in the way")
        with pytest.raises(StoreError, match=r"cannot write the store at .*partial"):
            Checkpoints(tmp_path, "key", ranks=ALONE).save(1, lambda folder: None, run={}, progress={}, log="")


class TestWrongUse:
    def test_keeping_none_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="keep is 0; expected at least one checkpoint to resume from"):
            Checkpoints(tmp_path, "key", ranks=ALONE, keep=0)

    def test_a_negative_interval_is_rejected(self) -> None:
        with pytest.raises(InputError, match=r"checkpoint-every is -1; expected seconds >= 0"):
            CheckpointPolicy(every=-1)

    def test_one_of_another_run_is_rejected_as_a_start(self, bench: Bench) -> None:
        bench.stop_after(1)
        (path,) = bench.partial.iterdir()
        other = Bench(replace(bench.spec, seed=1), bench.store)
        with pytest.raises(InputError, match=r"is a checkpoint of another run: its seed is 0; expected 1, that of the"):
            other.run(CheckpointPolicy(start=open_checkpoint(path)))

    def test_a_start_that_the_spec_does_not_name_is_rejected(self, bench: Bench) -> None:
        bench.stop_after(1)
        (path,) = bench.partial.iterdir()
        with pytest.raises(InputError, match=r"expected spec.continued to be the digest of policy.start"):
            bench.run(CheckpointPolicy(start=open_checkpoint(path)))
        with pytest.raises(InputError, match=r"is continued from 1234, and policy.start is None"):
            Bench(replace(bench.spec, continued="1234"), bench.store).run()

    def test_a_folder_that_is_no_checkpoint_is_rejected(self, bench: Bench, tmp_path: Path) -> None:
        with pytest.raises(
            InputError, match=r"not a valid checkpoint: manifest.json is missing; give a folder partial"
        ):
            open_checkpoint(tmp_path / "nothing")
        with pytest.raises(InputError, match=r"manifest.json is not that of a checkpoint"):
            open_checkpoint(bench.run().path)


def test_checkpoints_that_a_run_goes_on_from_alike_have_one_digest(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is in the key of the continued run; the times in a log are not part of what it continues."""
    monkeypatch.setattr("train.engine.loop.STEP_EVENT_EVERY", 1)
    again = Bench(bench.spec, RunStore(tmp_path / "another"))
    other = Bench(replace(bench.spec, seed=7), RunStore(tmp_path / "another"))
    found = []
    for one in (bench, again, other):
        one.stop_after(5)
        found.append(open_checkpoint(one.partial / "step-5"))
    first, same, different = found
    assert first.log() != same.log()  # the speed
    assert first.digest == same.digest != different.digest
    assert open_checkpoint(bench.partial / "step-4").digest != first.digest
