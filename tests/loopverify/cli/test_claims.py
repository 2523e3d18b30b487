"""loopverify claims: listed, and judged on stored runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from loopverify.claims import CLAIMS, Run
from tests.loopverify.cli.calls import Cli
from tests.loopverify.cli.stored import bounded, measurement, stored


def test_claims_are_listed(cli: Cli, folder: Path) -> None:
    status, out, _ = cli("claims", "--json", "claims.json")
    assert status == 0
    assert all(name in out for name in CLAIMS)
    records = json.loads((folder / "claims.json").read_text())
    assert [record["claim"] for record in records] == list(CLAIMS)
    assert {record["verdict"] for record in records} == {"not run"}


def rows(out: str, verdict: str) -> list[str]:
    return [line.split()[1] for line in out.splitlines() if line.startswith(f"{verdict} ")]


def test_stored_runs_are_judged_and_a_contradicted_claim_falls_short(cli: Cli, folder: Path) -> None:
    stored(folder / "good", bounded("tiny", 0.5))
    status, out, _ = cli("claims", "--runs", "good", "--json", "claims.json")
    assert (status, rows(out, "held"), rows(out, "contradicted")) == (0, ["P1.T2.tens.per_loop.raw"], [])
    assert "1 held, 0 contradicted, 0 inconclusive, " in out
    assert "not run, missing runs of exit_weighted/rmsnorm, " in " ".join(out.split())
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
            "differs from the digest in its manifest",
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


def test_metrics_measured_after_training_are_judged(cli: Cli, folder: Path) -> None:
    run = dataclasses.replace(bounded("tiny", 0.5, seeds=1)[0], key="abc")
    stored(folder, [run])
    measurement(folder, "abc", "old", {"r@1": 1e-9, "r@4": 1e-9}, age=60)
    measurement(folder, "abc", "new", {"r@1": 0.06, "r@4": "inf", "norm@4": 1e9})
    measurement(folder, "another", "other", {"r@1": 0.0})
    status, out, _ = cli("claims", "--runs", ".")
    assert "P1.T3.radial.raw.first" in rows(out, "held")  # 0.06, the value of the latest measurement
    assert "P1.T3.radial.raw.last" in rows(out, "contradicted")
    assert "P1.T2.tens.per_loop.raw" in rows(out, "held")  # metrics of training take precedence
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
    assert "metrics.json differs from the digest in its manifest" in " ".join(err.split())


def test_an_empty_name_is_no_folder_of_runs(cli: Cli, folder: Path) -> None:
    stored(folder, bounded("tiny", 0.5))  # in the current folder, to which an empty path refers
    status, out, err = cli("claims", "--runs", "")
    assert (status, out) == (2, "")
    assert err == "error: --runs is ''; expected a folder for stored runs, such as runs, or . for the current one"


@pytest.mark.parametrize(("place", "reason"), [("absent", "it is not a folder"), (".", "it has no runs/*/result.json")])
def test_a_folder_without_runs_is_wrong_use(cli: Cli, place: str, reason: str) -> None:
    status, _, err = cli("claims", "--runs", place)
    assert status == 2
    assert reason in err
