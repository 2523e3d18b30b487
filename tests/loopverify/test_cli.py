"""The command line: what it says, what it writes, and that its exit status can be relied on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopverify.claims import CLAIMS, Bound, Run
from loopverify.cli import main

MODELS = """
import dataclasses
import functools
import torch
from torch import nn
from loopverify import Looped
from loopverify.models import LoopedTransformer, TransformerConfig

def transformer(**options):
    torch.manual_seed(0)
    return LoopedTransformer(TransformerConfig(vocab_size=31, d_model=16, layers=1, d_ff=32, **options))

def hidden():
    return transformer()

def raw():
    return transformer(readout="raw")

def boundary():
    return transformer(inter_loop_norm="own")

def no_vocabulary():
    view = transformer().looped()
    return Looped(embed=view.embed, step=view.step, readout=view.readout, trained_loops=2, name="closures")

def in_place():
    view = hidden().looped()
    def step(state, context, loop):
        state += 1.0
        return view.step(state, context, loop)
    return Looped(embed=view.embed, step=step, readout=view.readout, trained_loops=2, vocab_size=31)

def uneven():
    view = hidden().looped()
    def readout(state, context, loop, loops):
        return loop * view.readout(state, context, loop, loops)
    return Looped(embed=view.embed, step=view.step, readout=readout, trained_loops=2, vocab_size=31)

def wants_arguments(size):
    return hidden()

def raises():
    raise RuntimeError("no [weights] here")

def raises_without_a_word():
    raise ValueError()

raises_in_c_without_a_word = functools.partial(next, iter(()))

def exits_without_a_word():
    raise SystemExit

def step_without_a_word():
    view = hidden().looped()
    def step(state, context, loop):
        raise AssertionError
    return Looped(embed=view.embed, step=step, readout=view.readout, trained_loops=2)

def words():
    view = hidden().looped()
    return dataclasses.replace(view, name=":smile: [bold]x[/bold]")

def broken_step():
    view = hidden().looped()
    def step(state, context, loop):
        return state @ torch.zeros(3, 3)
    return Looped(embed=view.embed, step=step, readout=view.readout, trained_loops=2)

number = 7
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with models in it, which leaves nothing imported behind."""
    (tmp_path / "mine.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        out, err = capsys.readouterr()
        assert all(len(line) <= 100 for line in (out + err).splitlines())
        sys.modules.pop("mine", None)
        return status, out, " ".join(err.split())

    return call


Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("model", "options", "status", "verdict"),
    [
        ("hidden", [], 1, "BLIND SPOT"),
        ("hidden", ["--objective", "per_loop+penalty"], 0, "CONTROLLED"),
        ("raw", ["--loops", "3"], 0, "CONTROLLED"),
        ("boundary", [], 0, "REMOVED"),
    ],
)
def test_an_audit_s_exit_status_is_its_verdict(
    cli: Cli, model: str, options: list[str], status: int, verdict: str
) -> None:
    ended, out, err = cli("audit", f"mine:{model}", *options)
    assert (ended, err) == (status, "")
    assert out.splitlines()[0].endswith(verdict)
    assert "Input: 4 × 64 tokens drawn at random (seed 0) from a vocabulary of 31." in out


def test_an_audit_s_json_is_the_record_with_its_input(cli: Cli, folder: Path) -> None:
    cli("audit", "mine.py:hidden", "--json", "audit.json", "--seed", "5")
    record = json.loads((folder / "audit.json").read_text())
    assert record["verdict"] == "blind_spot"
    assert record["facts"]["seed"] == 5
    assert record["input"].startswith("4 × 64 tokens drawn at random (seed 5)")


def test_a_vocabulary_that_the_model_does_not_say_is_read_from_its_logits(cli: Cli) -> None:
    _, out, _ = cli("audit", "mine:no_vocabulary")
    assert "from a vocabulary of 31." in out


def _npy(path: Path) -> None:
    np.save(path, np.arange(24).reshape(2, 12) % 31)


TOKEN_FILES: dict[str, Callable[[Path], object]] = {
    "tokens.json": lambda path: path.write_text(json.dumps([list(range(12)), list(range(12, 24))])),
    "tokens.npy": _npy,
    "tokens.txt": lambda path: path.write_text("0 1 2 3 4 5 6 7 8 9 10 11\n\n12, 13 14 15 16 17 18 19 20 21 22 23\n"),
}


@pytest.mark.parametrize("name", TOKEN_FILES)
def test_tokens_are_read_from_every_form(cli: Cli, folder: Path, name: str) -> None:
    TOKEN_FILES[name](folder / name)
    status, out, _ = cli("audit", "mine:hidden", "--tokens", name, "--json", "audit.json")
    assert status == 1
    assert f"Input: 2 × 11 tokens from {name}." in out
    assert "drawn at random" not in out
    facts = json.loads((folder / "audit.json").read_text())["facts"]
    assert (facts["batch"], facts["tokens"]) == (2, 11)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.json", None, "cannot read the tokens in none.json: No such file"),
        ("a.json", "{1", "the tokens in a.json are not integers"),
        ("a.json", "[[1, 2.5]]", "2.5 is a float"),
        ("a.json", "[[true, 1]]", "True is a bool"),
        (
            "a.json",
            "[[1, 2], [3]]",
            "have lengths 1, 2; expected one length of at least 2 tokens: a sequence of T + 1 gives T tokens and, one "
            "further on, their T targets",
        ),
        ("a.txt", "7", "have lengths 1; expected one length of at least 2 tokens"),
        ("a.json", "[]", "have lengths no sequence at all"),
        ("a.txt", "1 two 3", "expected a .json list of lists, an integer .npy, or a text"),
        ("a.npy", "text", "the tokens in a.npy are not integers"),
        ("a.txt", "1 2 99 4", "token 3 of sequence 1 in a.txt is 99; expected 0..30 for a vocabulary of 31. Was the"),
        ("a.txt", "1 2 3\n4 5 99", "token 3 of sequence 2 in a.txt is 99; expected 0..30"),  # a target only
        ("a.txt", "-1 2 3", "token 1 of sequence 1 in a.txt is -1; expected 0..30"),
    ],
)
def test_tokens_that_cannot_be_used_are_wrong_use(
    cli: Cli, folder: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (folder / name).write_text(content)
    status, out, err = cli("audit", "mine:hidden", "--tokens", name)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("mine", "model 'mine'; expected 'package.module:factory'"),
        ("absent:f", "cannot import 'absent' (No module named 'absent')"),
        ("absent.py:f", "cannot read absent.py: No such file or directory"),
        ("mine:absent", "mine has no 'absent'"),
        ("mine:number", "is a int; expected a function that returns a model"),
        ("mine:wants_arguments", "raised TypeError: wants_arguments() missing 1 required positional argument"),
        ("mine:raises", "raised RuntimeError: no [weights] here, at"),
        ("mine:raises_without_a_word", "called without arguments, raised ValueError, at"),
        ("mine:raises_in_c_without_a_word", "called without arguments, raised StopIteration"),
        ("mine:exits_without_a_word", "called without arguments, raised SystemExit, at"),
        ("mine:step_without_a_word", "the model raised AssertionError, at"),
        ("mute.py:f", "cannot import 'mute.py' (ImportError, at"),
        ("typo.py:f", "importing typo.py raised SyntaxError: invalid syntax"),
        ("needs.py:f", "No module named 'not_installed_anywhere', at"),
        ("mine:broken_step", "the model raised RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    ],
)
@pytest.mark.parametrize("command", ["audit", "check"])
def test_a_model_that_cannot_be_had_is_wrong_use_with_the_place(
    cli: Cli, folder: Path, command: str, model: str, message: str
) -> None:
    (folder / "typo.py").write_text("def f(:\n")
    (folder / "mute.py").write_text("raise ImportError\n")
    (folder / "needs.py").write_text("import not_installed_anywhere\n")
    status, out, err = cli(command, model)
    assert (status, out) == (2, "")
    assert message in err
    if model == "mine:raises":
        assert "mine.py:" in err
        assert err.endswith("in raises")
    if model == "mine:broken_step":
        assert err.endswith("in step")


def test_checks_hold_or_fall_short(cli: Cli, folder: Path) -> None:
    status, out, _ = cli("check", "mine:hidden", "--json", "checks.json")
    records = json.loads((folder / "checks.json").read_text())
    assert status == 0
    assert {record["status"] for record in records} == {"passed", "skipped"}
    assert out.rstrip().splitlines()[-1].startswith(f"looped_transformer/rmsnorm: {len(records)} checks, ")
    assert all(record["id"] in out for record in records)


def test_a_failed_check_is_told_in_full_and_last_and_can_be_expected(cli: Cli) -> None:
    status, out, _ = cli("check", "mine:uneven")
    lines = [line for line in out.splitlines() if line.startswith(("passed", "failed"))]
    failing = [line.split()[1] for line in lines if line.startswith("failed")]
    assert status == 1
    assert "same_readout" in failing
    assert [line.split()[0] for line in lines] == ["passed"] * (len(lines) - len(failing)) + ["failed"] * len(failing)
    assert "Remedy: use one readout for all exits" in " ".join(out.split())

    expected = [f"{name}=known, a = b" for name in failing]
    status, out, _ = cli("check", "mine:uneven", "--expect", *expected[:1], "--expect", *expected[-1:], *expected[1:])
    assert status == 0
    assert "expected (known, a = b)" in out


def test_a_step_in_place_is_not_skipped_over(cli: Cli) -> None:
    status, out, _ = cli("check", "mine:in_place")
    assert status == 1
    assert ["failed", "state_memory"] in [line.split()[:2] for line in out.splitlines()]


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        ("state_memory", "--expect 'state_memory'; expected the id of a check and why it fails: id=why"),
        ("nonsense=because", "unknown check 'nonsense'"),
    ],
)
def test_expectations_without_a_reason_or_a_check_are_wrong_use(cli: Cli, expectation: str, message: str) -> None:
    status, _, err = cli("check", "mine:hidden", "--expect", expectation)
    assert status == 2
    assert message in err


def test_an_expectation_that_no_longer_holds_falls_short(cli: Cli) -> None:
    status, out, _ = cli("check", "mine:hidden", "--expect", "determinism=flaky once")
    assert status == 1
    assert "expected to fail (flaky once), and passes" in " ".join(out.split())


def test_doctor_names_versions_devices_extras_and_reach(cli: Cli) -> None:
    status, out, _ = cli("doctor")
    flat = " ".join(out.split())
    assert status == 0
    for part in ("loopverify 0.", "torch 2.", "float64, float32", "extra cli", "0.05 (n = 3)"):
        assert part in flat


def test_doctor_says_how_to_get_what_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    installed = metadata.version

    def without_scipy(package: str) -> str:
        if package == "scipy":
            raise metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(metadata, "version", without_scipy)
    _, out, _ = cli("doctor")
    assert "without scipy; pip install 'loopverify[stats]'" in " ".join(out.split())


def test_claims_are_listed(cli: Cli, folder: Path) -> None:
    status, out, _ = cli("claims", "--json", "claims.json")
    assert status == 0
    assert all(name in out for name in CLAIMS)
    records = json.loads((folder / "claims.json").read_text())
    assert [record["claim"] for record in records] == list(CLAIMS)
    assert {record["verdict"] for record in records} == {"not run"}


def stored(root: Path, runs: Iterable[Run], **spec: Any) -> list[Path]:
    """Runs as the training harness stores them: a result, and a manifest that names it."""
    folders = []
    for run in runs:
        folder = root / "runs" / hashlib.sha256(json.dumps([run.to_dict(), spec]).encode()).hexdigest()[:16]
        folder.mkdir(parents=True)
        text = run.to_json()
        (folder / "result.json").write_text(text)
        loss, _, readout = run.condition.partition("/")
        manifest = {
            "spec": {"loss": loss, "readout": readout, "penalty": None, "seed": run.seed, **spec},
            "files": {"result.json": {"bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}},
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
        folders.append(folder)
    return folders


def bounded(preset: str, value: float, seeds: int = 3) -> list[Run]:
    """Runs of the condition of one bound, with the metric at a multiple of it."""
    claim = CLAIMS["P1.T2.tens.per_loop.raw"]
    assert isinstance(claim.form, Bound)
    metrics = {claim.metric: value * claim.form.value}
    return [Run(preset=preset, condition=claim.form.condition, seed=seed, metrics=metrics) for seed in range(seeds)]


def rows(out: str, verdict: str) -> list[str]:
    return [line.split()[1] for line in out.splitlines() if line.startswith(f"{verdict} ")]


def test_stored_runs_are_judged_and_a_contradicted_claim_falls_short(cli: Cli, folder: Path) -> None:
    stored(folder / "good", bounded("tiny", 0.5))
    status, out, _ = cli("claims", "--runs", "good", "--json", "claims.json")
    assert (status, rows(out, "held"), rows(out, "contradicted")) == (0, ["P1.T2.tens.per_loop.raw"], [])
    assert "1 held, 0 contradicted, 0 inconclusive, " in out
    assert "not run, for want of runs of exit_weighted/rmsnorm, " in " ".join(out.split())
    records = json.loads((folder / "claims.json").read_text())
    assert {record["verdict"] for record in records["tiny"]} == {"held", "not run"}

    stored(folder / "bad", bounded("tiny", 2.0))
    status, out, _ = cli("claims", "--runs", "bad")
    assert (status, rows(out, "contradicted")) == (1, ["P1.T2.tens.per_loop.raw"])


def test_presets_and_studies_of_one_preset_are_judged_apart(cli: Cli, folder: Path) -> None:
    stored(folder, bounded("tiny", 0.5), device="cpu", preset={"steps": 10})
    stored(folder, bounded("tiny", 2.0), device="cpu", preset={"steps": 20})
    stored(folder, bounded("small", 0.5), device="cpu", preset={"steps": 20})
    status, out, _ = cli("claims", "--runs", ".", "--json", "claims.json")
    assert status == 1
    assert set(json.loads((folder / "claims.json").read_text())) == {
        "small",
        "tiny (preset.steps 10)",
        "tiny (preset.steps 20)",
    }
    assert "tiny (preset.steps 20), runs: 3" in out


def test_runs_without_a_manifest_are_sorted_by_preset_and_a_seed_counts_once(cli: Cli, folder: Path) -> None:
    folders = stored(folder, [*bounded("tiny", 0.5, seeds=1), *bounded("small", 0.5, seeds=1)])
    for path in folders:
        (path / "manifest.json").unlink()
    assert cli("claims", "--runs", ".")[0] == 0
    stored(folder, [dataclasses.replace(bounded("tiny", 0.6, seeds=1)[0], key="another")])
    (again,) = set(folder.glob("runs/*")) - set(folders)
    (again / "manifest.json").unlink()
    status, _, err = cli("claims", "--runs", ".")
    assert status == 2
    assert "a seed counts once" in err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda path: path.write_text(path.read_text().replace("tiny", "tint")),
            "not the file that its manifest names",
        ),
        (lambda path: path.with_name("manifest.json").write_text("{"), "is damaged: "),
    ],
)
def test_damaged_runs_are_named(cli: Cli, folder: Path, damage: Callable[[Path], object], message: str) -> None:
    (path,) = stored(folder, bounded("tiny", 0.5, seeds=1))
    damage(path / "result.json")
    status, _, err = cli("claims", "--runs", ".")
    assert status == 2
    assert message in err
    assert path.name in err


def measurement(root: Path, run: str, code: str, metrics: Mapping[str, float | str], age: float = 0.0) -> Path:
    """A measurement of a stored run as the harness keeps it, made `age` seconds ago."""
    path = root / "measurements" / code / "metrics.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(metrics))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest = {"spec": {"run": run, "code": code}, "files": {"metrics.json": {"sha256": sha256}}}
    path.with_name("manifest.json").write_text(json.dumps(manifest))
    os.utime(path, (made := time.time() - age, made))
    return path


def test_what_was_measured_after_training_is_judged_too(cli: Cli, folder: Path) -> None:
    run = dataclasses.replace(bounded("tiny", 0.5, seeds=1)[0], key="abc")
    stored(folder, [run])
    measurement(folder, "abc", "old", {"r@1": 1e-9, "r@4": 1e-9}, age=60)
    measurement(folder, "abc", "new", {"r@1": 0.06, "r@4": "inf", "norm@4": 1e9})
    measurement(folder, "another", "other", {"r@1": 0.0})
    status, out, _ = cli("claims", "--runs", ".")
    assert "P1.T3.radial.raw.first" in rows(out, "held")  # 0.06, of the code that measured last
    assert "P1.T3.radial.raw.last" in rows(out, "contradicted")
    assert "P1.T2.tens.per_loop.raw" in rows(out, "held")  # training has the last word on its own metrics
    assert status == 1


def test_recurrences_are_conditions_of_one_study(cli: Cli, folder: Path) -> None:
    stored(folder, bounded("tiny", 0.5), recurrence="residual")
    damped = Run(preset="tiny", condition="terminal/rmsnorm/damped", seed=0, metrics={"norm@4": 2.0})
    stored(folder, [damped], recurrence="damped")
    _, out, _ = cli("claims", "--runs", ".")
    assert "tiny, runs: 4" in out


def test_a_damaged_measurement_is_named(cli: Cli, folder: Path) -> None:
    stored(folder, bounded("tiny", 0.5, seeds=1))
    path = measurement(folder, "abc", "new", {"r@1": 0.06})
    path.write_text("{}")
    status, _, err = cli("claims", "--runs", ".")
    assert status == 2
    assert "metrics.json is not the file that its manifest names" in " ".join(err.split())


def test_an_empty_name_is_no_folder_of_runs(cli: Cli, folder: Path) -> None:
    stored(folder, bounded("tiny", 0.5))  # in the current folder, which an empty path means
    status, out, err = cli("claims", "--runs", "")
    assert (status, out) == (2, "")
    assert err == "error: --runs is ''; expected a folder for stored runs, such as runs, or . for the current one"


@pytest.mark.parametrize(("place", "reason"), [("absent", "it is no folder"), (".", "it has no runs/*/result.json")])
def test_a_folder_without_runs_is_wrong_use(cli: Cli, place: str, reason: str) -> None:
    status, _, err = cli("claims", "--runs", place)
    assert status == 2
    assert reason in err


@pytest.mark.parametrize("command", ["audit", "check"])
def test_the_words_of_a_user_are_shown_as_they_are(cli: Cli, command: str) -> None:
    _, out, _ = cli(command, "mine:words")
    assert ":smile: [bold]x[/bold]" in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full, which is Linux's disk without space")
@pytest.mark.parametrize("command", [["audit", "mine:hidden"], ["doctor"]])
def test_a_full_disk_is_told_and_is_no_fault_of_the_model(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(_installed(*command), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert " ".join(done.stderr.split()) == (
        "error: cannot write the output: No space left on device; what was found is not shown. Free some space, or "
        "send it elsewhere"
    )


def test_an_encoding_that_lacks_a_character_is_told() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(_installed("audit", "mine:raw"), capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "error: cannot write the output: ascii has no " in done.stderr
    assert "Set PYTHONIOENCODING=utf-8" in " ".join(done.stderr.split())


def _installed(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("loopverify")), *arguments]


def test_a_file_that_cannot_be_written_is_wrong_use(cli: Cli) -> None:
    status, _, err = cli("claims", "--json", "absent/claims.json")
    assert status == 2
    assert "cannot write absent/claims.json: No such file or directory" in err


@pytest.mark.parametrize("arguments", [[], ["audit"], ["dance"], ["audit", "mine:hidden", "--loops", "many"]])
def test_arguments_that_do_not_parse_are_wrong_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize("library", ["rich", "tyro"])
def test_without_the_extra_the_command_says_how_to_get_it(library: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; from loopverify.cli import main; sys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {library} is not installed; the command line needs it. "
        "Install it with: pip install 'loopverify[cli]'\n"
    )


def test_the_installed_command_ends_with_the_status() -> None:
    done = subprocess.run(_installed("claims", "--runs", "absent"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no stored runs in absent")
