"""Runs whose bytes changed: always detected and named, never loaded."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from loopverify.errors import LoopverifyError
from tests.train.damage import FLIPS, damaged
from tests.train.micro import trained
from tests.train.store.stores import SPEC, fill
from train.engine.open import open_examples
from train.store import CorruptRunError, RunStore, StoredRun, StoreError, manifest


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
        (run.path / "manifest.json").write_text(json.dumps(record, indent=1), encoding="utf-8")

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
    def test_no_flipped_bit_and_no_lost_tail_of_any_file_goes_unseen(self, text_file: Path, tmp_path: Path) -> None:
        store = RunStore(tmp_path)
        spec, stored = trained(store, text_file)
        determinants = spec.determinants(open_examples(spec, store))
        seen = Counter()
        for name, what in damaged(stored.path):
            with pytest.raises(CorruptRunError) as caught:
                pytest.fail(f"{name}, {what}: loaded {store.get(determinants)}")
            assert any(problem.startswith(name) for problem in caught.value.problems), (what, caught.value.problems)
            seen[name] += 1
        assert set(seen) == {"manifest.json", "metrics.jsonl", "model.safetensors", "result.json"}
        assert min(seen.values()) > FLIPS
        assert store.get(determinants) == stored  # the damage was undone

    def test_all_problems_of_a_run_are_reported_together(self, store: RunStore) -> None:
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
        recorded: list[CorruptRunError] = []
        assert list(store.runs(recorded.append)) == [runs[0], runs[2]]
        assert [error.key for error in recorded] == [runs[1].key]

    def test_discarding_what_another_process_just_discarded_says_where_it_is(self, store: RunStore) -> None:
        run = fill(store)
        assert store.discard(run.key) == store.discard(run.key) == store.root / "corrupt" / f"{run.key}-1"
        with pytest.raises(StoreError, match="No such file or directory"):
            store.discard("never stored")

    def test_a_run_of_another_version_is_rejected_and_not_called_corrupt(self, store: RunStore) -> None:
        rewrite(format=2)(fill(store))
        with pytest.raises(StoreError, match=r"has format 2; expected 1\. Another version of this library") as caught:
            store.get(SPEC)
        assert not isinstance(caught.value, CorruptRunError)

    def test_every_error_of_the_store_is_one_of_the_library(self) -> None:
        assert issubclass(CorruptRunError, StoreError)
        assert issubclass(StoreError, LoopverifyError)
