"""The run store: whole or not there, verified, safe under several processes, and clear about what went wrong."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save_file

from loopverify.errors import InputError, LoopverifyError
from train import manifest
from train.store import CorruptRunError, RunStore, StoredRun, StoreError

SPEC = {"preset": {"lr": 1e-2, "layers": 2}, "seed": 0}
NEEDS_DEV_FULL = pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is always full")
FACTS = {"host": "here", "versions": {"torch": torch.__version__}}


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "store")


def fill(store: RunStore, spec: dict[str, object] = SPEC, value: float = 1.0) -> StoredRun:
    with store.create(spec, FACTS) as folder:
        (folder / "result.json").write_text(json.dumps({"value": value}), encoding="utf-8")
        save_file({"weights": torch.full((4,), value)}, folder / "model.safetensors")
    stored = store.get(spec)
    assert stored is not None
    return stored


def leftovers(store: RunStore) -> list[Path]:
    return list((store.root / ".temporary").iterdir())


class TestWhatIsStored:
    def test_it_comes_back(self, store: RunStore) -> None:
        assert store.get(SPEC) is None
        run = fill(store, value=3.0)
        assert run.path == store.root / "runs" / store.key(SPEC)
        assert (run.key, run.spec, run.facts) == (store.key(SPEC), SPEC, FACTS)
        assert run.files == ("model.safetensors", "result.json")
        assert run.json("result.json") == {"value": 3.0}
        assert torch.equal(run.tensors("model.safetensors")["weights"], torch.full((4,), 3.0))
        assert leftovers(store) == []

    def test_files_may_lie_in_folders(self, store: RunStore) -> None:
        with store.create(SPEC) as folder:
            (folder / "history").mkdir()
            (folder / "history" / "one.json").write_text("[1]", encoding="utf-8")
        run = store.get(SPEC)
        assert run is not None
        assert run.files == ("history/one.json",)
        assert run.json("history/one.json") == [1]

    def test_whoever_may_read_its_folder_may_read_its_files(self, store: RunStore) -> None:
        run = fill(store)
        modes = {(run.path / name).stat().st_mode & 0o777 for name in (*run.files, "manifest.json")}
        assert modes == {run.path.stat().st_mode & 0o666}

    def test_its_tensors_are_no_views_of_the_file(self, store: RunStore) -> None:
        run = fill(store)
        weights = run.tensors("model.safetensors")["weights"]
        path = run.path / "model.safetensors"
        path.write_bytes(bytes(path.stat().st_size))
        assert torch.equal(weights, torch.ones(4))

    def test_a_file_it_lacks_is_named_with_those_it_has(self, store: RunStore) -> None:
        for read in (fill(store).json, fill(store).tensors):
            with pytest.raises(InputError, match=r"no file '../x'; it has: model.safetensors, result.json"):
                read("../x")

    def test_all_runs_come_in_the_order_of_their_keys(self, store: RunStore) -> None:
        assert list(store.runs()) == []
        stored = [fill(store, {"seed": seed}) for seed in range(5)]
        assert list(store.runs()) == sorted(stored, key=lambda run: run.key)


class TestKeys:
    def test_equal_specs_have_one_key_whatever_their_order(self, store: RunStore) -> None:
        assert store.key({"a": 1, "b": [1, 2]}) == store.key({"b": (1, 2), "a": 1})
        assert re.fullmatch("[0-9a-f]{16}", store.key(SPEC))
        # sha256sum of the text {"a":1}
        assert store.key({"a": 1}) == "015abd7f5cc57a2d"

    @given(st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(0, 3) | st.floats(0, 1) | st.none())))
    def test_different_specs_have_different_keys(self, specs: list[dict[str, object]]) -> None:
        store = RunStore("nowhere")
        assert len({store.key(spec) for spec in specs}) == len({repr(sorted(spec.items())) for spec in specs})

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), Path("x"), {1, 2}, torch.ones(1)])
    def test_what_json_cannot_say_is_refused_before_the_work(self, store: RunStore, value: object) -> None:
        with pytest.raises(InputError, match=r"the spec is not JSON: .*give strings, finite numbers, lists"):
            store.key({"value": value})
        with pytest.raises(InputError, match="the record of facts is not JSON"), store.create(SPEC, {"value": value}):
            pytest.fail("the work began")


def attempt(store: RunStore, then: Callable[[], object], name: str = "half.json") -> None:
    """Write a file of a run, then do something."""
    with store.create(SPEC) as folder:
        (folder / name).write_text("{}", encoding="utf-8")
        then()


def fill_by_writing() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")


def fill_by_safetensors() -> None:
    # What save_file raises on a full disk. It is not tried on /dev/full, which it would replace by a file.
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


class TestFailures:
    @pytest.mark.parametrize("error", [RuntimeError("diverged"), KeyboardInterrupt(), FileNotFoundError(2, "lost")])
    def test_nothing_is_left_of_a_run_that_fails_and_the_error_is_its_own(
        self, store: RunStore, error: BaseException
    ) -> None:
        def fail() -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            attempt(store, fail)
        assert caught.value is error
        assert store.get(SPEC) is None
        assert leftovers(store) == []

    @pytest.mark.parametrize("fill_up", [pytest.param(fill_by_writing, marks=NEEDS_DEV_FULL), fill_by_safetensors])
    def test_a_full_disk_is_named_and_leaves_nothing(self, store: RunStore, fill_up: Callable[[], None]) -> None:
        with pytest.raises(StoreError, match="No space left on device; free some space or choose another place"):
            attempt(store, fill_up)
        assert store.get(SPEC) is None
        assert leftovers(store) == []

    @pytest.mark.parametrize("call", ["fsync", "rename"])
    def test_so_is_one_that_fills_while_the_run_is_sealed(
        self, store: RunStore, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.raises(StoreError, match="No space left on device; free some space"):
            attempt(store, lambda: monkeypatch.setattr(os, call, refuse))
        monkeypatch.undo()
        assert store.get(SPEC) is None
        assert leftovers(store) == []

    def test_a_run_may_not_bring_its_own_manifest(self, store: RunStore) -> None:
        with pytest.raises(InputError, match=r"may not have a file 'manifest\.json' of its own"):
            attempt(store, lambda: None, name="manifest.json")
        assert store.get(SPEC) is None


def begin(store: RunStore, method: str) -> None:
    with getattr(store, method)(SPEC):
        pytest.fail("the work began")


class TestPlacesThatCannotBeStores:
    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("", encoding="utf-8")
        for root in (tmp_path / "file", tmp_path / "file" / "below" / "it"):
            with pytest.raises(StoreError, match=r"no store can be at .*: .*/file is not a folder; choose another"):
                RunStore(root)

    def test_a_link_to_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "nothing")
        with pytest.raises(StoreError, match="link is not a folder"):
            RunStore(tmp_path / "link")

    @pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a file system that makes no folders")
    @pytest.mark.parametrize("method", ["create", "lock"])
    def test_a_place_where_nothing_can_be_written(self, method: str) -> None:
        store = RunStore("/proc/self/store")
        with pytest.raises(StoreError, match=r"cannot write the store at /proc/self/store.*choose another place"):
            begin(store, method)
        assert store.get(SPEC) is None  # looking is allowed

    @pytest.mark.parametrize("method", ["create", "lock"])
    def test_a_place_without_permission(self, store: RunStore, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: Path, *_: object, **__: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))

        monkeypatch.setattr(Path, "mkdir", refuse)
        with pytest.raises(
            StoreError, match="Permission denied; check the path and its permissions, or choose another"
        ):
            begin(store, method)

    def test_a_store_whose_runs_cannot_be_read(self, store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(store)

        def refuse(self: Path) -> bytes:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))

        monkeypatch.setattr(Path, "read_bytes", refuse)
        with pytest.raises(StoreError, match=r"cannot read the store at .*manifest.json: Permission denied") as caught:
            store.get(SPEC)
        assert not isinstance(caught.value, CorruptRunError)  # which would have it moved away

    def test_looking_makes_nothing(self, store: RunStore) -> None:
        assert store.get(SPEC) is None
        assert list(store.runs()) == []
        assert not store.root.exists()


def cut_short(run: StoredRun) -> None:
    path = run.path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def flip(run: StoredRun) -> None:
    path = run.path / "result.json"
    path.write_bytes(path.read_bytes().replace(b"1", b"3"))


def swap_with_folder(run: StoredRun) -> None:
    (run.path / "result.json").unlink()
    (run.path / "result.json").mkdir()


def rewrite(**changes: object) -> Callable[[StoredRun], None]:
    """A manifest of other content, with the right sum of its own."""

    def damage(run: StoredRun) -> None:
        record = {**manifest.read(run.path), **changes}
        record["sha256"] = manifest.sha256(manifest.canonical(record))
        (run.path / "manifest.json").write_text(json.dumps(record), encoding="utf-8")

    return damage


DAMAGES: dict[str, tuple[Callable[[StoredRun], object], str]] = {
    "cut short": (cut_short, r"model\.safetensors has \d+ bytes instead of \d+"),
    "flipped": (flip, r"result\.json was changed: it has the right size and another sha256"),
    "missing": (lambda run: (run.path / "result.json").unlink(), r"result\.json is missing"),
    "a folder": (swap_with_folder, r"result\.json is missing"),
    "no manifest": (lambda run: (run.path / "manifest.json").unlink(), r"manifest\.json is missing"),
    "empty manifest": (lambda run: (run.path / "manifest.json").write_bytes(b""), r"manifest\.json is not JSON"),
    "binary manifest": (lambda run: (run.path / "manifest.json").write_bytes(b"\xff"), r"manifest\.json is not JSON"),
    "list manifest": (lambda run: (run.path / "manifest.json").write_bytes(b"[]"), r"manifest\.json was changed"),
    "nan manifest": (lambda run: (run.path / "manifest.json").write_bytes(b'{"a":NaN}'), r"manifest\.json is not JSON"),
    "another key": (rewrite(key="0" * 16), r"manifest\.json is that of run 0000000000000000"),
    "another spec": (rewrite(spec={"seed": 1}), r"manifest\.json is that of another spec"),
}


@pytest.mark.parametrize("name", DAMAGES)
class TestCorruptRuns:
    def test_they_are_named_and_never_loaded(self, store: RunStore, name: str) -> None:
        damage, words = DAMAGES[name]
        run = fill(store)
        damage(run)
        with pytest.raises(
            CorruptRunError, match=rf"the stored run {re.escape(str(run.path))} is corrupt: {words}"
        ) as e:
            store.get(SPEC)
        assert (e.value.key, e.value.path) == (run.key, run.path)

    def test_they_can_be_moved_aside_and_made_again(self, store: RunStore, name: str) -> None:
        for number in (1, 2):
            run = fill(store, value=1.0)
            DAMAGES[name][0](run)
            aside = store.discard(run.key)
            assert aside == store.root / "corrupt" / f"{run.key}-{number}"
            assert aside.is_dir()
            assert store.get(SPEC) is None
        assert fill(store, value=2.0).json("result.json") == {"value": 2.0}


class TestDamageInGeneral:
    @pytest.mark.parametrize("file", ["model.safetensors", "result.json", "manifest.json"])
    def test_no_flipped_bit_goes_unseen(self, store: RunStore, file: str) -> None:
        run = fill(store)
        path, draw = run.path / file, random.Random(0)
        whole = path.read_bytes()
        for place in draw.choices(range(len(whole)), k=60):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :])
            try:
                found = store.get(SPEC)
            except CorruptRunError:
                continue
            assert file == "manifest.json"  # white space between its values may become other white space
            assert found == run

    def test_all_problems_of_a_run_are_told_at_once(self, store: RunStore) -> None:
        run = fill(store)
        cut_short(run)
        flip(run)
        with pytest.raises(CorruptRunError) as caught:
            store.get(SPEC)
        assert [problem.split()[0] for problem in caught.value.problems] == ["model.safetensors", "result.json"]

    def test_among_all_runs_corrupt_ones_are_raised_or_passed_over(self, store: RunStore) -> None:
        runs = sorted((fill(store, {"seed": seed}) for seed in range(3)), key=lambda run: run.key)
        cut_short(runs[1])
        with pytest.raises(CorruptRunError):
            list(store.runs())
        told: list[CorruptRunError] = []
        assert list(store.runs(told.append)) == [runs[0], runs[2]]
        assert [error.key for error in told] == [runs[1].key]

    def test_discarding_what_another_process_just_discarded_says_where_it_is(self, store: RunStore) -> None:
        run = fill(store)
        assert store.discard(run.key) == store.discard(run.key) == store.root / "corrupt" / f"{run.key}-1"
        with pytest.raises(StoreError, match="No such file or directory"):
            store.discard("never stored")

    def test_a_run_of_another_version_is_refused_and_not_called_corrupt(self, store: RunStore) -> None:
        rewrite(format=2)(fill(store))
        with pytest.raises(StoreError, match=r"has format 2; expected 1\. Another version of this library") as caught:
            store.get(SPEC)
        assert not isinstance(caught.value, CorruptRunError)

    def test_every_error_of_the_store_is_one_of_the_library(self) -> None:
        assert issubclass(CorruptRunError, StoreError)
        assert issubclass(StoreError, LoopverifyError)


def take(store: RunStore, spec: dict[str, object]) -> None:
    with store.lock(spec):
        pass


class TestSeveralProcesses:
    def test_the_first_of_two_equal_runs_stays(self, store: RunStore) -> None:
        with store.create(SPEC) as late:
            (late / "result.json").write_text('"late"', encoding="utf-8")
            with store.create(SPEC) as early:
                (early / "result.json").write_text('"early"', encoding="utf-8")
        run = store.get(SPEC)
        assert run is not None
        assert run.json("result.json") == "early"
        assert leftovers(store) == []

    def test_many_processes_train_one_run_once(self, store: RunStore, tmp_path: Path) -> None:
        code = f"""
        with store.lock(spec):
            if store.get(spec) is None:
                with store.create(spec) as folder, open({str(tmp_path / "log")!r}, "a") as log:
                    log.write("trained\\n")
                    time.sleep(0.1)
                    (folder / "result.json").write_text("1")
        """
        children = [child(store, code) for _ in range(4)]
        assert [one.wait(timeout=60) for one in children] == [0, 0, 0, 0]
        assert (tmp_path / "log").read_text(encoding="utf-8") == "trained\n"

    def test_threads_wait_for_each_other_and_one_may_come_back(self, store: RunStore) -> None:
        held = []

        def once(number: int) -> None:
            with store.lock(SPEC), store.lock(SPEC):
                held.append(number)
                time.sleep(0.02)
                held.append(number)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(once, range(4)))
        assert held[::2] == held[1::2]
        assert sorted(held[::2]) == [0, 1, 2, 3]

    def test_locks_of_different_specs_do_not_wait(self, store: RunStore) -> None:
        with store.lock({"seed": 0}), ThreadPoolExecutor(1) as pool:
            pool.submit(take, store, {"seed": 1}).result(timeout=10)


PREAMBLE = """
import os, sys, time
from pathlib import Path
from train import manifest
from train.store import RunStore
store, spec = RunStore(sys.argv[1]), {"preset": {"lr": 1e-2, "layers": 2}, "seed": 0}
def stop(*_, **__):
    print("here", flush=True)
    time.sleep(60)
"""


def child(store: RunStore, code: str, **pipes: int) -> subprocess.Popen[str]:
    """A process with the same store and spec."""
    body = "\n".join(line[8:] for line in code.splitlines())
    return subprocess.Popen([sys.executable, "-c", PREAMBLE + body, str(store.root)], text=True, **pipes)


@contextmanager
def killed_at_stop(store: RunStore, code: str) -> Iterator[None]:
    """Run a process until it stops, look around, kill it."""
    with child(store, code, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        yield
        process.kill()
        assert process.wait() == -signal.SIGKILL


BEFORE_THE_RENAME = {
    "while it writes": """
        with store.create(spec) as folder:
            (folder / "result.json").write_text("half")
            stop()
        """,
    "before the manifest": """
        manifest.canonical = stop
        with store.create(spec) as folder:
            (folder / "result.json").write_text("1")
        """,
    "while it writes the manifest": """
        Path.write_text = lambda path, *_, **__: (path.write_bytes(b"{"), stop())
        with store.create(spec) as folder:
            (folder / "result.json").write_bytes(b"1")
        """,
    "before the rename": """
        os.rename = stop
        with store.create(spec) as folder:
            (folder / "result.json").write_text("1")
        """,
}


class TestKilledProcesses:
    @pytest.mark.parametrize("moment", BEFORE_THE_RENAME)
    def test_before_the_rename_there_is_no_run_and_the_next_one_clears_up(self, store: RunStore, moment: str) -> None:
        with killed_at_stop(store, BEFORE_THE_RENAME[moment]):
            assert store.get(SPEC) is None
            with store.create({"seed": 1}):
                pass
            assert len(leftovers(store)) == 1  # what a living process writes is left alone
        assert store.get(SPEC) is None
        assert len(leftovers(store)) == 1
        assert fill(store).json("result.json") == {"value": 1.0}
        assert leftovers(store) == []

    def test_after_the_rename_the_run_is_whole(self, store: RunStore) -> None:
        code = """
        rename = os.rename
        os.rename = lambda *places: (rename(*places), stop())
        with store.create(spec) as folder:
            (folder / "result.json").write_text("1")
        """
        with killed_at_stop(store, code):
            pass
        run = store.get(SPEC)
        assert run is not None
        assert run.json("result.json") == 1

    def test_a_killed_process_loses_its_lock(self, store: RunStore) -> None:
        code = """
        with store.lock(spec):
            stop()
        """
        with ThreadPoolExecutor(1) as pool:
            with killed_at_stop(store, code):
                waiting = pool.submit(take, store, SPEC)
                with pytest.raises(TimeoutError):
                    waiting.result(timeout=0.2)
            waiting.result(timeout=10)

    def test_at_any_moment_there_are_whole_runs_only(self, store: RunStore) -> None:
        code = """
        for seed in range(10**6):
            with store.create({"seed": seed, "process": os.getpid()}) as folder:
                for name in "abc":
                    (folder / name).write_bytes(name.encode() * 20_000)
            if seed == 1:
                print("here", flush=True)
        """
        draw = random.Random(0)
        for _ in range(6):
            with killed_at_stop(store, code):
                time.sleep(draw.uniform(0.005, 0.1))
        runs = list(store.runs())  # which verifies each of them
        assert len(runs) >= 6 * 2  # what each process had stored before it was killed
        assert all(run.files == ("a", "b", "c") for run in runs)
        fill(store)
        assert leftovers(store) == []
