"""The key of a run: equal for equal results and different otherwise, independent of names and places."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loopverify.errors import InputError
from loopverify.tasks import Hops
from tests.train.micro import micro, micro_hops
from train.data import DataSpec, TaskSpec
from train.engine.open import open_examples
from train.provenance.closure import code_digest
from train.specification import ORDINARY, Execution, Preset, RunSpec, preset, run_spec
from train.store import RunStore

TINY = RunSpec(preset=preset("tiny"), loss="per_loop", readout="rmsnorm")


@dataclass(frozen=True)
class Examples:
    """What a key holds of the data."""

    digest: str = "text-a"
    count: int | None = 163


def key(spec: RunSpec, examples: Examples = Examples()) -> str:
    return RunStore("nowhere").key(spec.determinants(examples))  # type: ignore[arg-type]


def test_everything_that_determines_the_result_is_in_the_key() -> None:
    others = [
        replace(TINY, seed=1),
        replace(TINY, loss="terminal"),
        replace(TINY, readout="raw"),
        replace(TINY, recurrence="damped"),
        replace(TINY, loss="per_loop+penalty"),
        replace(TINY, loss="per_loop+penalty", penalty=0.1),
        replace(TINY, lr=3e-3),
        replace(TINY, device="cuda"),
        replace(TINY, continued="that of a checkpoint"),
        replace(TINY, execution=Execution(micro_batch=4)),
        replace(TINY, execution=Execution(precision="bfloat16")),
    ]
    keys = {key(TINY), *map(key, others), key(TINY, Examples(digest="text-b"))}
    assert len(keys) == 2 + len(others)


OTHER = {
    "sandwich_norm": True,
    "tied_head": True,
    "dropout": 0.2,
    "epochs": None,
    "min_lr": 1e-3,
    "first_exit": 0.5,
    "threads": 2,
    "heads": 4,
    "data": DataSpec(),
    "name": "another",
    "steps": 7,
}
"""Other values of the fields of a preset, where one more than that of `tiny` would not do."""


@pytest.mark.parametrize("field", [field.name for field in fields(Preset)])
def test_every_field_of_a_preset_moves_the_key_but_its_name_and_how_its_text_is_spelled(field: str) -> None:
    p = preset("tiny")
    changed = replace(p, **{field: OTHER[field] if field in OTHER else getattr(p, field) + 1})
    # The text is in the key by its digest, and epochs as the steps they come to.
    assert (key(replace(TINY, preset=changed)) == key(TINY)) == (field in ("name", "data", "epochs"))


def test_what_is_the_same_run_has_the_same_key() -> None:
    p = TINY.preset
    assert key(replace(TINY, penalty=0.5)) == key(TINY)  # a weight that the loss does not use
    assert key(replace(TINY, lr=p.lr)) == key(TINY)
    assert key(replace(TINY, preset=preset("tiny", steps=1500))) == key(TINY)
    assert key(replace(TINY, preset=preset("tiny", source="elsewhere"))) == key(TINY)
    assert key(replace(TINY, preset=replace(p, name="a copy of tiny"))) == key(TINY)
    assert key(replace(TINY, execution=Execution(precision="float32"))) == key(TINY)
    assert key(replace(TINY, execution=Execution(micro_batch=p.batch))) == key(TINY)
    assert key(replace(TINY, preset=replace(p, grad_clip=1))) == key(TINY)  # 1 for 1.0
    epochs = replace(p, steps=None, epochs=3)
    assert key(replace(TINY, preset=epochs)) == key(replace(TINY, preset=replace(p, steps=3 * (163 // 16))))
    # Fewer windows than another text, and so fewer steps: it is the text that differs, and the key shows both.
    assert key(replace(TINY, preset=epochs), Examples(count=40)) != key(replace(TINY, preset=epochs))
    penalized = replace(TINY, loss="per_loop+penalty", penalty=1.0)
    assert key(replace(penalized, penalty=1)) == key(penalized)


def test_what_rounds_the_same_has_one_key() -> None:
    ordinary = ORDINARY.determinants("cpu", 16)
    assert Execution(precision="float32").determinants("cpu", 16) == ordinary
    assert Execution(precision="bfloat16").determinants("cuda", 16) == ORDINARY.determinants("cuda", 16) != ordinary
    assert Execution(micro_batch=16).determinants("cpu", 16) == ordinary
    assert Execution(micro_batch=99).determinants("cpu", 16) == ordinary
    shared = Execution(ranks=3, parallel="ddp")  # 6, 5 and 5 windows
    assert replace(shared, micro_batch=6).determinants("cpu", 16) == shared.determinants("cpu", 16)


def test_what_rounds_otherwise_has_another_key() -> None:
    executions = [
        ORDINARY,
        Execution(ranks=2, parallel="ddp"),
        Execution(ranks=2, parallel="fsdp"),
        Execution(ranks=3, parallel="ddp"),
        Execution(micro_batch=15),
        Execution(micro_batch=4),
        Execution(compiled=True),
        Execution(precision="bfloat16"),
    ]
    assert len({str(execution.determinants("cpu", 16)) for execution in executions}) == len(executions)


def test_the_key_holds_the_code_the_versions_and_the_environment_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    base = TINY.determinants(Examples())  # type: ignore[arg-type]
    assert base["code"] == code_digest(*run_spec._ROOTS)
    assert (base["torch"], base["environment"]) == (torch.__version__, {})
    keys = {key(TINY)}
    with monkeypatch.context() as other:
        other.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
        keys.add(key(TINY))
    with monkeypatch.context() as other:
        other.setattr(torch, "__version__", "99.0")
        keys.add(key(TINY))
    with monkeypatch.context() as other:
        other.setattr(run_spec, "_CODE", "other")
        keys.add(key(TINY))
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("changes", "variable", "value", "moves"),
    [
        ({}, "ONEDNN_DEFAULT_FPMATH_MODE", "STRICT", False),
        ({}, "NVIDIA_TF32_OVERRIDE", "1", False),
        ({"device": "cuda"}, "NVIDIA_TF32_OVERRIDE", "1", True),
        ({"device": "cuda"}, "NVIDIA_TF32_OVERRIDE", "0", False),
        ({}, "TORCHDYNAMO_DISABLE", "1", False),
        ({"execution": Execution(compiled=True)}, "TORCHDYNAMO_DISABLE", "1", True),
        ({"execution": Execution(compiled=True)}, "TORCH_COMPILE_DISABLE", "1", True),
    ],
)
def test_a_variable_is_in_the_key_where_it_changes_the_run(
    changes: dict[str, Any], variable: str, value: str, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(TINY, **changes)
    before = key(spec)
    monkeypatch.setenv(variable, value)
    assert (key(spec) != before) == moves


def test_one_sum_of_losses_has_one_name() -> None:
    one, other = (replace(TINY, loss=f"per_loop{terms}") for terms in ("+latent+penalty", "+penalty+latent"))
    assert (one.condition, key(one)) == (other.condition, key(other))


def test_two_weights_have_two_names() -> None:
    names = {replace(TINY, loss="per_loop+penalty", penalty=weight).condition for weight in (0.1234567, 0.1234568)}
    assert len(names) == 2


@pytest.mark.parametrize("changes", [{"seed": 2**31}, {"seed": True}, {"seed": 1.0}, {"device": "cuda:0"}])
def test_what_torch_would_take_for_another_run_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"seed is .*; expected an integer in 0\.\.2\^31 - 1|unknown kind of device"):
        replace(TINY, **changes)


def test_every_node_of_a_cluster_has_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    here = key(TINY)
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setattr(os, "cpu_count", lambda: 999)
    monkeypatch.setattr("platform.processor", lambda: "another")
    monkeypatch.setattr("socket.gethostname", lambda: "node-7")
    assert key(TINY) == here


def spelled(text: Path, home: Path) -> dict[str, str]:
    """Ways to name one text, from the folder `home` that it is in."""
    (home / "link.jsonl").symlink_to(text)
    (home / "linked").symlink_to(text.parent)
    (home / "moved").mkdir()
    moved = home / "moved" / "called otherwise.jsonl"
    moved.write_bytes(text.read_bytes())
    return {
        "absolute": str(text),
        "relative": os.path.relpath(text, home),
        "from here": f"./{os.path.relpath(text, home)}",
        "roundabout": f"{text.parent}/../{text.parent.name}//{text.name}",
        "a link": "link.jsonl",
        "in a linked folder": f"linked/{text.name}",
        "its folder": str(text.parent),
        "its folder with a slash": f"{text.parent}/",
        "a copy of another name": str(moved),
    }


def test_however_a_text_is_spelled_a_run_on_it_has_one_key(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    text = folder / "made_up.jsonl"
    text.write_bytes(text_file.read_bytes())
    monkeypatch.chdir(tmp_path)
    keys = {what: stored_key(micro(Path(name))) for what, name in spelled(text, tmp_path).items()}
    slash = micro(folder)
    keys["a folder with a slash"] = stored_key(replace(slash, data=replace(slash.data, source=f"{folder}/")))
    assert len(set(keys.values())) == 1, keys
    content = text.read_bytes()
    text.write_bytes(content.replace(b"loop", b"loup", 1))
    assert stored_key(micro(text)) not in keys.values()
    text.write_bytes(content.replace(b"loop", "löop".encode(), 1))  # the tokenizer drops it, and yet
    assert stored_key(micro(text)) not in keys.values()


def stored_key(shape: Preset) -> str:
    spec = RunSpec(preset=shape, loss="per_loop", readout="rmsnorm")
    store = RunStore("a store")
    return store.key(spec.determinants(open_examples(spec, store)))


@pytest.mark.parametrize("named", ["sotu", "pydoc"])
def test_auto_is_the_text_that_it_takes(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if named == "pydoc":
        monkeypatch.setattr("train.data.sources._sotu", absent)
    auto, own = (stored_key(preset("tiny", source=source)) for source in ("auto", named))
    assert auto == own


def absent() -> None:
    from loopverify.errors import MissingDependencyError

    raise MissingDependencyError("not installed")


@pytest.mark.parametrize(
    "change",
    [
        lambda p: replace(p, data=replace(p.data, vocab_max=9)),
        lambda p: replace(p, data=replace(p.data, min_freq=600)),
        lambda p: replace(p, seq_len=17),
        lambda p: replace(p, stride=17),
    ],
)
def test_how_a_text_becomes_tokens_and_windows_is_in_the_key(
    change: Callable[[Preset], Preset], text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert stored_key(change(micro(text_file))) != stored_key(micro(text_file))


def test_a_task_is_in_the_key_by_its_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = [TaskSpec(task=Hops(symbols=symbols, depth=depth)) for symbols, depth in ((3, 2), (4, 2), (4, 3))]
    keys = {stored_key(micro_hops(data=task, seq_len=task.task.length)) for task in tasks}
    assert len(keys) == 3


def test_a_key_is_json_and_names_no_place(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = RunSpec(preset=micro(text_file), loss="per_loop", readout="rmsnorm")
    output = json.dumps(spec.determinants(open_examples(spec, RunStore("a store"))))
    assert "/" not in output.replace("+cpu", "")
    assert text_file.stem not in output
