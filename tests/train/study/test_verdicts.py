"""From evidence to the outcome of a test: what must hold, what is known not to, and designs that cannot be evidence."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loopverify.claims import CLAIMS, Evidence, evaluate
from loopverify.errors import InputError
from tests.loopverify.claims.made_up import met, missed, runs
from train.__main__ import main
from train.specification import PRESETS, preset
from train.store import RunStore
from train.study import verdicts
from train.study.expected_shortfalls import EXPECTED_SHORTFALLS, Shortfall
from train.study.study import Study
from train.study.verdicts import Verdicts

ROOT = Path(__file__).parents[3]
CLAIM = CLAIMS["P1.T5.depth.raw"]
HELD, MISSED, NOT_RUN = (
    evaluate(CLAIM, made) for made in (runs(CLAIM, [met(CLAIM)]), runs(CLAIM, [missed(CLAIM)]), [])
)


def outcome(
    evidence: Evidence,
    monkeypatch: pytest.MonkeyPatch,
    known: Shortfall | None = None,
    seeds: int = 3,
    **changes: object,
) -> tuple[str, str]:
    listed = {} if known is None else {CLAIM.id: known}
    monkeypatch.setattr(verdicts, "EXPECTED_SHORTFALLS", {"tiny": listed})
    shape = replace(preset("tiny"), **changes)  # type: ignore[arg-type]
    return Verdicts(Study(preset=shape, seeds=seeds, store=RunStore("nowhere"))).outcome(evidence)


def test_a_claim_must_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(HELD, monkeypatch) == ("passed", "")
    assert outcome(MISSED, monkeypatch) == ("failed", str(MISSED))
    mixed = evaluate(CLAIM, runs(CLAIM, [met(CLAIM), missed(CLAIM)]))
    assert mixed.verdict == "inconclusive"
    assert outcome(mixed, monkeypatch)[0] == "failed"


def test_what_was_not_run_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(NOT_RUN, monkeypatch) == ("skipped", "not run: missing: runs of per_loop/raw")


def test_a_known_shortfall_is_expected_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Shortfall(verdict="contradicted", measured="0.001 nats", seeds=3)
    assert outcome(MISSED, monkeypatch, known) == (
        "xfailed",
        "contradicted: 0.001 nats, required ≥ 0.01 nats",
    )


def test_a_known_shortfall_that_holds_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Shortfall(verdict="contradicted", measured="0.001 nats", seeds=3)
    result, output = outcome(HELD, monkeypatch, known)
    assert result == "failed"
    assert output.startswith(
        "held, but expected to be contradicted: remove it from train/study/expected_shortfalls.py. held: "
    )
    # One seed of a claim that three contradict can hold by chance.
    assert outcome(HELD, monkeypatch, known, seeds=1) == ("passed", "")


def test_what_is_known_as_undecided_may_end_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Shortfall(verdict="inconclusive", measured="2 of 3 seeds", reason="a reason", seeds=3)
    assert outcome(HELD, monkeypatch, known) == ("passed", "")
    assert outcome(MISSED, monkeypatch, known) == (
        "xfailed",
        "contradicted: 2 of 3 seeds, required ≥ 0.01 nats; a reason",
    )


def test_a_failed_run_fails_the_claims_on_its_condition_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdicts, "EXPECTED_SHORTFALLS", {})
    judge = Verdicts(Study(preset=preset("tiny"), seeds=3, store=RunStore("nowhere")))
    penalty, raw = judge.study.specs(["per_loop/raw", "per_loop+penalty/rmsnorm"])[-2:]
    assert raw.condition == "per_loop/raw"
    judge.failures = {raw: "exit status 1: diverged"}
    assert judge.outcome(HELD) == (
        "failed",
        "runs that the claim needs failed; the others are stored. per_loop/raw seed 2: exit status 1: diverged",
    )
    judge.failures = {penalty: "exit status 1: diverged"}
    assert judge.outcome(HELD) == ("passed", "")


def test_what_is_known_of_a_preset_says_nothing_about_a_changed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Shortfall(verdict="contradicted", measured="0.001 nats", seeds=1)
    assert outcome(MISSED, monkeypatch, known, steps=3)[0] == "failed"
    assert outcome(HELD, monkeypatch, known, steps=3)[0] == "passed"


def test_the_list_names_presets_and_claims_that_exist() -> None:
    assert EXPECTED_SHORTFALLS.keys() <= PRESETS.keys()
    for listed in EXPECTED_SHORTFALLS.values():
        assert listed.keys() <= CLAIMS.keys()
        assert all(known.measured.strip() and known.seeds >= 1 for known in listed.values())


def test_the_list_does_not_retype_what_claims_require() -> None:
    for listed in EXPECTED_SHORTFALLS.values():
        for name, known in listed.items():
            assert not re.search(r"asked|required|at most|at least|[≥≤]", known.measured + known.reason), name


def test_evidence_takes_seeds() -> None:
    def study(seeds: int) -> Study:
        return Study(preset=preset("tiny"), seeds=seeds, store=RunStore("nowhere"))

    study(3).require_evidence(0.05)  # C(6, 3) = 20
    with pytest.raises(InputError, match=r"evidence required of 2 seeds per condition: .* use --seeds 3 or more"):
        study(2).require_evidence(0.05)
    with pytest.raises(InputError, match=r"no rank test of 4 against 4 can reach alpha = 0\.01; use --seeds 5"):
        study(4).require_evidence(0.01)


@pytest.mark.parametrize(
    ("options", "output"),
    [
        (["--seeds", "2", "--evidence"], ["evidence required of 2 seeds per condition", "use --seeds 3 or more"]),
        (["--data", "absent.txt"], ["unknown text 'absent.txt'; expected one of auto, ", "or an existing path"]),
        (["--runs", ""], ["--runs is ''; expected a folder for stored runs, such as runs, or . for the current one"]),
    ],
)
def test_pytest_reports_wrong_use_before_it_trains(tmp_path: Path, options: list[str], output: list[str]) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "train", "-k", "T5"]
    done = subprocess.run(
        [*command, "--runs", str(tmp_path / "runs"), *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    for words in output:
        assert words in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", [[], ["reproduce", "T12"]], ids=["train", "reproduce"])
def test_an_empty_name_is_no_run_store(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--runs", ""]) == 2
    output = " ".join(capsys.readouterr().err.split())
    assert output.startswith(
        "error: --runs is ''; expected a folder for stored runs, such as runs, or . for the current"
    )
    assert not list(tmp_path.iterdir())
