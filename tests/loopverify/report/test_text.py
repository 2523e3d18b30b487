"""The report for a terminal."""

from __future__ import annotations

import sys

import pytest

from loopverify.claims import CLAIMS
from loopverify.report import build
from tests.loopverify.report.sample import TABLE_2, sample_runs

DRIFT = CLAIMS["P1.T2.drift.per_loop.vs_raw"]


def test_plain_text() -> None:
    text = build(sample_runs(3, ["per_loop/rmsnorm", "per_loop/raw"]), [DRIFT], facts={"wall time": "60 s"}).to_text(
        120
    )
    assert text.splitlines() == [
        "Claims on trained models, preset tiny",
        "",
        "held          P1.T2.drift.per_loop.vs_raw (n = 3 vs 3)",
        "              ×370 (337…407), required ≥ ×30; paper ×891 (44M), ×728 (129M)",
        "",
        "condition         n       ‖H_4‖₂  PPL at 1  PPL at 2  PPL at 3  PPL at 4  paper 44M: ‖H_4‖₂, PPL",
        "per_loop/rmsnorm  3  3,577 ± 170      11.8      11.0      10.8      10.8   39,207 ± 19,891, 6.04",
        "per_loop/raw      3  9.66 ± 0.46      9.37      8.86      8.85      8.95            44 ± 1, 5.38",
        "",
        "wall time: 60 s",
        "device: cpu",
        "dtype: float32",
        "torch: 2.6.0",
        "text: made up",
        "wall_s: 60 (2 of 6 runs), 67 (2 of 6 runs), 74 (2 of 6 runs)",
        "",
        "1 claim: 1 held, 0 contradicted, 0 inconclusive, 0 not run.",
    ]


@pytest.mark.parametrize("width", [72, 80, 132])
def test_lines_fit_the_width(width: int) -> None:
    lines = build(sample_runs()).to_text(width).splitlines()
    assert max(map(len, lines)) <= width


def test_what_did_not_hold_says_why() -> None:
    text = " ".join(build(sample_runs()).to_text(200).split())
    assert (
        "contradicted P1.T2.tens.per_loop.penalty (n = 3) 126 L2 (120…132), required ≤ 100 L2; "
        "paper 17 (44M), 22 (129M) L2 Per-loop loss through RMSNorm plus a norm penalty keeps the norm"
    ) in text
    assert "seeds within the bound: 0 of 3" in text


def test_text_and_json_need_no_further_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("jinja2", "matplotlib", "scipy", "rich"):
        monkeypatch.setitem(sys.modules, library, None)
    report = build(sample_runs(), TABLE_2)
    assert "21 held" in report.to_text()
    assert '"held": 21' in report.to_json()
