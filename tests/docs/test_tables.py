"""`python -m docs`: every table is what its source says, and the command finds and mends one that is not."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docs import library
from docs.__main__ import ROOT, main
from docs.pages import pages, rewritten
from docs.results import METRICS, Results, from_report
from loopverify.checks import CHECKS
from loopverify.checks.traits import TRAITS
from loopverify.claims import CLAIMS, claims_for
from loopverify.claims.quantity import number
from loopverify.errors import InputError
from loopverify.report import build, write
from tests.loopverify.report.sample import sample_runs
from tests.train.micro import trained
from train.launch.run import result
from train.store import RunStore

TOP = "<!-- x -->\nold\n<!-- end of x -->\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The pages and the stored results, to be changed."""
    for page in pages(ROOT):
        (tmp_path / page.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(page, tmp_path / page.relative_to(ROOT))
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "docs" / "results")
    shutil.copy(ROOT / "bench" / "cpu.json", tmp_path / "bench")
    return tmp_path


def edit(page: Path, old: str, new: str) -> None:
    text = page.read_text(encoding="utf-8")
    assert old in text
    page.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_no_table_is_stale() -> None:
    assert main([]) == 0, "run python -m docs --write"


def test_a_table_edited_by_hand_is_found_and_mended(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = copy / "docs" / "claims.md"
    before = page.read_text(encoding="utf-8")
    edit(page, "| ×197 (155…310) |", "| ×891 |")
    assert main([], copy) == 1
    assert capsys.readouterr().out.splitlines()[0] == "stale: docs/claims.md: claims"
    assert main(["--write"], copy) == 0
    assert page.read_text(encoding="utf-8") == before
    assert main([], copy) == 0


def test_prose_is_left_alone(copy: Path) -> None:
    edit(copy / "docs" / "checks.md", "# Checks and traits", "# Checks, and more")
    assert main(["--write"], copy) == 0
    assert (copy / "docs" / "checks.md").read_text(encoding="utf-8").startswith("# Checks, and more")


def test_a_source_that_changes_makes_its_table_stale(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {**CHECKS, "causality": replace(CHECKS["causality"], catches="Something else.")}
    monkeypatch.setattr(library, "CHECKS", changed)
    edit(copy / "docs" / "results" / "saboteurs.json", '"caught": 20', '"caught": 19')
    assert main([], copy) == 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        "stale: docs/checks.md: checks",
        "stale: docs/saboteurs.md: saboteurs",
    ]


@pytest.mark.parametrize(
    ("readme", "page", "words"),
    [
        (TOP, TOP, "section 'x' is in "),
        ("<!-- x -->\nold\n", "", "a marker without its counterpart"),
        (TOP.replace("x", "y"), TOP, "unknown section 'y'; expected one of: x"),
        ("", "", "no page has the sections x"),
    ],
)
def test_markers_that_fit_no_section_are_named(readme: str, page: str, words: str, tmp_path: Path) -> None:
    for folder in ("docs", "bench"):
        (tmp_path / folder).mkdir()
    (tmp_path / "README.md").write_text(readme, encoding="utf-8")
    (tmp_path / "docs" / "page.md").write_text(page, encoding="utf-8")
    (tmp_path / "bench" / "README.md").touch()
    with pytest.raises(InputError, match=words):
        rewritten(tmp_path, {"x": lambda root: "new"})


def test_every_check_and_trait_has_a_line() -> None:
    lines = library.checks(ROOT).splitlines()
    assert len(lines) == 2 + len(CHECKS)
    row = next(line for line in lines if line.startswith("| `cache_slots` |"))
    fault = "A cache with one slot per layer instead of one per layer and loop."
    assert row == f"| `cache_slots` | {fault} | `decode`, `cache_slots` |"
    assert all(check.catches.endswith(".") for check in CHECKS.values())
    assert len(library.traits(ROOT).splitlines()) == 2 + len(TRAITS)


def test_tables_of_the_library_say_what_audits_say() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in library.readouts(ROOT).splitlines()]
    assert rows[2:4] == [
        ["`rmsnorm`", "hidden", "hidden", "visible", "blind spot"],
        ["`raw`", *3 * ["visible"], "controlled"],
    ]
    carried = dict(re.findall(r"^\| `(\w+)` .* (\w+) \(c", library.recurrences(ROOT), flags=re.MULTILINE))
    assert (carried["residual"], carried["damped"], carried["inter_loop_norm"]) == ("carried", "damped", "removed")


# --- results of a study


def report(**changes: Any) -> dict[str, Any]:
    """A report of made-up runs on every claim of the preset tiny."""
    made = build(sample_runs(), [claim for claim in CLAIMS.values() if not claim.conditions[0].startswith("hops")])
    return {**json.loads(made.to_json()), **changes}


def test_the_results_of_a_report_are_shown(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report()), encoding="utf-8")
    assert main(["--results", str(file), "--write"], copy) == 0
    told = capsys.readouterr().out
    assert {"written: README.md: table-2", "written: README.md: findings", "written: docs/claims.md: claims"} == set(
        told.splitlines()
    )
    stored = json.loads((copy / "docs" / "results" / "tiny.json").read_text(encoding="utf-8"))
    assert stored["provenance"]["command"] == "pytest train --preset tiny --seeds 3"
    assert stored["provenance"]["torch"] == "2.6.0"
    assert set(stored["provenance"]) >= {"commit", "date", "device", "dtype", "seeds"}
    assert "**3,577** ± 170" in (copy / "README.md").read_text(encoding="utf-8")  # 3407 × 1, 1.05, 1.1
    page = (copy / "docs" / "claims.md").read_text(encoding="utf-8")
    assert "| ×370 (337…407) | ≥ ×30 | 3 vs 3 | 0.05, 1 | held |" in page


def test_a_stored_study_goes_from_its_runs_to_the_first_screen(copy: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"the state of loop {k} grows and no loss sees it. " * 20 for k in range(40)))
    _, stored = trained(RunStore(tmp_path / "runs"), text)
    run = result(stored)
    claims = [claim for claim in CLAIMS.values() if not claim.conditions[0].startswith("hops")]
    _, file, _ = write(build([run], claims), tmp_path / "report")
    assert main(["--results", str(file), "--write"], copy) == 0
    (row,) = (line for line in (copy / "README.md").read_text().splitlines() if line.startswith("| `per_loop/rmsnorm`"))
    assert f"**{number(run.metrics['norm@4'])}**" in row
    assert f"{number(run.metrics['ppl@1'])}, {number(run.metrics['ppl@4'])}" in row
    assert f"Preset `tiny`, 1 run, {len(claims)} claims:" in (copy / "README.md").read_text()


def test_results_change_only_with_write() -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--results", "report.json"])
    assert refused.value.code == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preset": "44m"}, "unknown preset of the report '44m'; expected one of: tiny, hops"),
        ({"evidence": []}, "does not judge [0-9]+ claims whose results it would replace, P1.T2.drift.per_loop.vs_raw"),
    ],
)
def test_a_report_of_something_else_is_refused(
    changes: dict[str, Any], words: str, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report(**changes)), encoding="utf-8")
    before = (copy / "docs" / "results" / "tiny.json").read_bytes()
    assert main(["--results", str(file), "--write"], copy) == 2
    assert re.search(words, capsys.readouterr().err)
    assert (copy / "docs" / "results" / "tiny.json").read_bytes() == before


def test_a_file_that_is_no_report_is_refused(tmp_path: Path, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, words in (("{", "cannot be read as JSON"), ("[]", "expected an object"), ("{}", "has no evidence")):
        (tmp_path / "x.json").write_text(text, encoding="utf-8")
        assert main(["--results", str(tmp_path / "x.json"), "--write"], copy) == 2
        assert words in capsys.readouterr().err


def test_what_a_claim_requires_is_the_registry_s(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = CLAIMS["P1.T2.drift.per_loop.vs_raw"]
    other = replace(claim, form=replace(claim.form, limit=40.0))  # type: ignore[type-var]
    results = Results.read(ROOT, "tiny")
    assert results.evidence(claim).required_text == "≥ ×30"
    with pytest.raises(InputError, match="was judged against ≥ 30, but requires ≥ 40; run the study again"):
        results.evidence(other)
    published = replace(claim, published={"44m": 5.0})
    assert (
        results.evidence(published).published_text == "×5.00 (44M)"
        or results.evidence(published).published_text == "×5 (44M)"
    )


def test_a_claim_without_results_is_shown_as_not_run() -> None:
    claim = replace(claims_for(["P1.T2"])[0], id="P1.T2.new")
    evidence = Results.read(ROOT, "tiny").evidence(claim)
    assert (evidence.verdict, evidence.measured_text) == ("not run", "–")


def test_metrics_are_kept_by_seed() -> None:
    runs = [replace(run, preset="hops") for run in sample_runs(conditions=["per_loop/raw"])]
    stored = Results(from_report(json.loads(build(runs, []).to_json()), None, {}))
    gains = stored.seeds("per_loop/raw", "ce@1-ce@4")
    assert gains == pytest.approx([2.233 - 2.188] * 3)
    assert stored.std("per_loop/raw", "ce@4") == pytest.approx(0.004)
    assert stored.runs == 3
    assert "step_matched" in METRICS["hops"]
    assert stored.mean("per_loop/raw", "step_matched") != stored.mean("per_loop/raw", "step_matched")  # not measured
