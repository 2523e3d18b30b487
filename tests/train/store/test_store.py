"""The run store: what is stored comes back, under keys that equal specs share."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopverify.errors import InputError
from tests.train.store.stores import FACTS, SPEC, fill, leftovers
from train.store import RunStore


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
    def test_equal_specs_have_one_key_in_any_order(self, store: RunStore) -> None:
        assert store.key({"a": 1, "b": [1, 2]}) == store.key({"b": (1, 2), "a": 1})
        assert re.fullmatch("[0-9a-f]{16}", store.key(SPEC))
        # sha256sum of the text {"a":1}
        assert store.key({"a": 1}) == "015abd7f5cc57a2d"

    @given(st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(0, 3) | st.floats(0, 1) | st.none())))
    def test_different_specs_have_different_keys(self, specs: list[dict[str, object]]) -> None:
        store = RunStore("nowhere")
        assert len({store.key(spec) for spec in specs}) == len({repr(sorted(spec.items())) for spec in specs})

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), Path("x"), {1, 2}, torch.ones(1)])
    def test_what_json_cannot_say_is_rejected_before_the_work(self, store: RunStore, value: object) -> None:
        with pytest.raises(InputError, match=r"the spec is not JSON: .*give strings, finite numbers, lists"):
            store.key({"value": value})
        with pytest.raises(InputError, match="the record of facts is not JSON"), store.create(SPEC, {"value": value}):
            pytest.fail("the work began")
