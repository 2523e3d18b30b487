"""Nothing that is stored says where it was made, from which file, or by whom."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loopverify.claims import CLAIMS
from tests.train.micro import micro
from tests.train.stops import After
from train.engine.checkpointing import CheckpointPolicy
from train.launch.fleet import Progress
from train.launch.run import ensure
from train.resume.preemption import PreemptedError
from train.specification import RunSpec
from train.store import RunStore
from train.study.study import Study
from train.study.verdicts import Verdicts

ROOT = Path(__file__).parents[3]
ODD = ("quokka", "wombat", "numbat", "bilby")
"""Parts of the names of the folder, the text, the user and the host."""


@pytest.fixture
def odd(tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A folder and a text in it, and a user and a host, of names that are found nowhere else."""
    folder = tmp_path / "of quokka"
    folder.mkdir()
    text = folder / "the wombat's text.jsonl"
    # One document twice, so that something is to be said about the text.
    content = text_file.read_text(encoding="utf-8")
    text.write_text(f"{content}\n{content.splitlines()[0]}", encoding="utf-8")
    for name in ("USER", "LOGNAME", "USERNAME", "LNAME"):
        monkeypatch.setenv(name, "numbat")
    monkeypatch.setenv("HOME", str(folder / "home of numbat"))
    monkeypatch.setenv("HOSTNAME", "bilby")
    monkeypatch.setattr(socket, "gethostname", lambda: "bilby")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "bilby", "1", "#1", "x86_64")))
    assert getpass.getuser() == "numbat"
    return folder, text


def output(root: Path) -> Iterator[str]:
    """Every odd word in the name or the content of anything below a folder."""
    paths = sorted(path for path in root.rglob("*"))
    assert paths
    for path in paths:
        name = str(path.relative_to(root)).encode()
        content = path.read_bytes() if path.is_file() else b""
        yield from (f"{path.relative_to(root)}: {word}" for word in ODD if word.encode() in (name + content).lower())


def test_runs_measurements_tokens_checkpoints_and_reports_name_no_place(odd: tuple[Path, Path]) -> None:
    folder, text = odd
    root = folder / "store"
    study = Study(preset=micro(text), seeds=1, store=RunStore(root))
    verdicts = Verdicts(study)
    claims = [CLAIMS["P1.T10.heavy.per_loop.p99"], CLAIMS["P1.T12.size.per_loop"]]
    said: list[str] = []
    for spec in study.specs({condition for claim in claims for condition in claim.conditions}):
        ensure(spec, study.store, lambda event: None, said.append)
    # One more that is stopped, so that its checkpoint stays.
    other = RunSpec(preset=micro(text), loss="terminal", readout="raw", seed=5)
    policy = CheckpointPolicy(every=0, preemption=After(3))
    with pytest.raises(PreemptedError):
        ensure(other, study.store, lambda event: None, said.append, policy=policy)
    verdicts.train(claims, Progress(), 1, said.append)
    verdicts.failures = {
        other: f"exit status 2: error: cannot read {text}",
        replace(other, seed=6): f"diverged: {text}",
    }
    for claim in claims:
        verdicts.judge(claim)
    verdicts.report()
    kinds = {path.relative_to(root).parts[0] for path in root.rglob("*") if path.is_file()}
    assert {"runs", "measurements", "data", "partial", "report"} <= kinds
    assert list(output(root)) == []


def test_the_search_finds_what_it_looks_for(odd: tuple[Path, Path]) -> None:
    folder, text = odd
    (folder / "store").mkdir()
    (folder / "store" / "fact.json").write_text(f'{{"text": "{text}"}}', encoding="utf-8")
    assert list(output(folder / "store")) == ["fact.json: quokka", "fact.json: wombat"]


def test_a_run_from_the_command_line_names_no_place(odd: tuple[Path, Path]) -> None:
    folder, text = odd
    shape = ("--steps", "2", "--preset", "tiny")
    command = [sys.executable, "-m", "train", *shape, "--data", str(text), "--runs", str(folder / "store")]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "wombat" in done.stderr  # the notice on the screen names the text
    assert list(output(folder / "store")) == []
