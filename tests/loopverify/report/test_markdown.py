"""The claims as a Markdown table."""

from __future__ import annotations

from loopverify.claims import CLAIMS
from loopverify.report import build
from tests.loopverify.report.sample import sample_runs


def test_one_row_per_claim_next_to_the_paper() -> None:
    held, missing = CLAIMS["P1.T2.drift.per_loop.vs_raw"], CLAIMS["P1.A16.latent.tens"]
    required = f"{missing.form.relation} {missing.form.limit:g} {missing.unit}"
    text = build(sample_runs(), [held, missing]).to_markdown()
    assert text.splitlines()[0].endswith("2 claims: 1 held, 0 contradicted, 0 inconclusive, 1 not run.")
    assert text.splitlines()[2:] == [
        "| claim | paper | ours | required | n | p for, against | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        f"| `{held.id}` | ×891 (44M), ×728 (129M) | ×370 (337…407) | ≥ ×30 | 3 vs 3 | 0.05, 1 | held |",
        f"| `{missing.id}` | – | – | {required} | 0 | – | **not run** |",
    ]


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    text = build(sample_runs(), [CLAIMS["P1.T2.drift.per_loop.vs_raw"]]).to_markdown()
    assert all(line.replace("\\|", "").count("|") == 8 for line in text.splitlines() if line.startswith("|"))
