"""Tables of the paper next to ours: their cells, the command, and the experiments by table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from loopverify.claims import CLAIMS, Run
from loopverify.claims.expression import names
from loopverify.claims.metrics import metric
from tests.loopverify.claims.made_up import run
from train.__main__ import main
from train.commands.reproduce import grid
from train.launch.run import ensure
from train.specification import preset
from train.store import RunStore
from train.study.measurements import MEASUREMENTS
from train.study.study import Study
from train.study.tables import TABLES, table

ROOT = Path(__file__).parents[3]


def printed(name: str, runs: list[Run]) -> list[list[str]]:
    """The cells of a table, row by row."""
    console = Console(width=200)
    with console.capture() as capture:
        console.print(grid(table(name), runs, "ours"))
    lines = capture.get().splitlines()
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def test_rows_are_the_papers_with_ours_first() -> None:
    late = {"a_rad@late": 42.0, "b_perp@late": 1.5, "b@late": 42.05, "b_over_a@late": 1.001}
    runs = [
        run("per_loop/rmsnorm", seed, {name: (seed + 1) * value for name, value in late.items()}) for seed in range(3)
    ]
    rows = printed("T12", runs)
    assert rows[0] == ["condition", "model", "a_rad", "rms(b_perp)", "rms(b)", "rms(b)/|a_rad|"]
    at = rows.index(["per_loop/rmsnorm", "ours", "84.00", "3.00", "84.10", "2.00"])  # the median of three seeds
    assert rows[at + 1] == ["paper 44M", "257.81", "15.45", "258.27", "1.00"]
    assert rows[at + 2] == ["paper 129M", "13.99", "14.86", "20.41", "1.46"]
    assert rows[at + 3] == ["terminal/raw", "ours", "–", "–", "–", "–"]
    assert rows[at + 4] == ["paper 44M", "-0.02", "0.06", "0.07", "3.74"]


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("T2", ["paper 129M", "56,051", "5.35"]),
        ("T3", ["paper 44M", "54", "0.064", "1.2e-08", "-3.9e-08"]),
        ("T4", ["paper 44M", "0.53", "+0.0055"]),
        ("T5", ["paper 44M", "5.22", "5.00", "-0.22", "2.60"]),
        ("T6", ["paper 1.4B", "5.27", "0.068", "11.02", "98.36", "–"]),
        ("T8", ["paper 1.4B", "6.7719", "873.0", "47,468", "–"]),
        ("T10", ["paper 129M", "26,426", "2,132", "124,507", "149,790", "43,792"]),
        ("T11", ["paper 44M", "1.1e+09", "5.04", "19.21", "4.1e-09"]),
        ("T13", ["paper 129M", "4.85", "4.90", "2.56", "1.43"]),
        ("T14", ["paper 129M", ">27.6", ">16.1", ">13.8", "1.55"]),
        ("A16", ["paper 129M", "2,973", "–"]),
    ],
)
def test_cells_are_as_printed_in_the_paper(name: str, cells: list[str]) -> None:
    assert cells in printed(name, [])


def test_every_depth_is_a_row_of_table_8() -> None:
    metrics = {f"ce@{k}": float(k) for k in range(1, 5)}
    rows = printed("T8", [run("per_loop/raw", 0, metrics)])
    assert [row[2] for row in rows if row[0].startswith("per_loop/raw")] == ["4.0000", "3.0000", "2.0000", "1.0000"]
    assert rows[-2][0] == "per_loop/raw, K = 1"


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_of_ours_can_be_measured(name: str) -> None:
    sources = {metric(read).source for expression in table(name).metrics for read in names(expression)}
    assert sources <= {"training", *MEASUREMENTS}


def test_every_table_with_claims_can_be_reproduced_but_those_not_of_text() -> None:
    claimed = {claim.table.removeprefix("P1.") for claim in CLAIMS.values() if claim.study == "P1"}
    assert {name for name in claimed if not name.startswith("F")} - TABLES.keys() == {"T7"}


@pytest.fixture(scope="module")
def store(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """The runs of Table 6, trained for three steps."""
    store = RunStore(tmp_path_factory.mktemp("reproduce"))
    study = Study(preset=preset("tiny", source=str(text_file), steps=3), seeds=1, store=store)
    for spec in study.specs(table("T6").conditions):
        ensure(spec, store, lambda event: None)
    return store


def options(store: RunStore, text_file: Path) -> list[str]:
    return ["--runs", str(store.root), "--data", str(text_file), "--steps", "3", "--device", "cpu"]


def test_the_command_prints_a_table(store: RunStore, text_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "t6", *options(store, text_file)]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("Table 6: the last state rescaled in front of the readout\n")
    assert "ours (tiny)" in output.out
    assert "ours: one seed; absolute perplexities compare within one model only" in output.out
    assert "…" not in output.out  # nothing is cut off
    assert "per_loop/raw seed 0: measured radial" in output.err


def test_an_unknown_table_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "T7", "--runs", str(tmp_path)]) == 2
    assert "error: unknown table 'T7'; expected one of: T2, T3, T4" in capsys.readouterr().err
    assert main(["reproduce", "T6", "--preset", "huge", "--runs", str(tmp_path)]) == 2
    assert "error: unknown preset 'huge'" in capsys.readouterr().err


def test_pytest_judges_one_table(store: RunStore, text_file: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "train", "-k", "T6 or T7"]
    done = subprocess.run([*command, *options(store, text_file)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "8 claims: " in " ".join(done.stdout.split())
    # Without the questions there is nothing to judge, nor to train for.
    assert done.stdout.count("it takes the questions of the nine benchmarks") >= 5
    assert "sweep_span" not in done.stdout  # for people, metrics have words
    assert (store.root / "report" / "report.html").exists()
    assert len(list((store.root / "runs").iterdir())) == 2
