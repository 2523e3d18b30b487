"""A store under several processes, some of which are killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.train.store.stores import SPEC, fill, leftovers
from train.store import RunStore


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
from train.store import manifest
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
