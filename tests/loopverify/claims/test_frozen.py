"""No limit moves: every claim is what it was before its first run."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import loopverify.claims
from loopverify.claims import CLAIMS, Claim
from tests.loopverify.claims import frozen as module
from tests.loopverify.claims.frozen import as_frozen, frozen

ROOM = Path(loopverify.claims.__file__).parent


def test_no_claim_has_moved() -> None:
    """A change here is a change of the claims: it needs a new claim, not a new number."""
    now = {claim.id: as_frozen(claim) for claim in CLAIMS.values()}
    assert {name: now.get(name) for name in frozen()} == frozen()


def test_every_claim_is_frozen() -> None:
    new = CLAIMS.keys() - frozen().keys()
    assert not new, f"freeze what is new before its first run: python -m tests.loopverify.claims.frozen ({sorted(new)})"


def test_freezing_adds_what_is_new_and_leaves_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *others = frozen().items()
    monkeypatch.setattr(module, "FILE", tmp_path / "frozen.json")
    module.FILE.write_text(json.dumps({first[0]: ["norm@4", "≥", 31.0, "×", 0.05], **dict(others)}), encoding="utf-8")
    module.freeze_new()
    assert module.frozen() == {**dict(others), second[0]: second[1], first[0]: ["norm@4", "≥", 31.0, "×", 0.05]}


@pytest.mark.parametrize("study", ["p1", "hops"])
def test_a_limit_is_written_in_one_file_only(study: str) -> None:
    """No claim has a number of its own: limits come from limits.py, published numbers from the data.

    The rounding floor of Table 3 is computed, and the metrics and exits of a claim are counted in whole numbers.
    """
    typed = [
        f"{path.name}: {part.value}"
        for path in (ROOM / study).glob("*.py")
        if path.name != "limits.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword | ast.FunctionDef) and getattr(node, "name", "") != "float32_floor"
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and type(part.value) in _numbers(node)
    ]
    assert typed == []


def _numbers(node: ast.keyword | ast.FunctionDef) -> tuple[type, ...]:
    """What may not be typed there: no number at all in the form of a claim, no fraction anywhere else."""
    return (int, float) if isinstance(node, ast.keyword) and node.arg in ("form", "limit") else (float,)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_the_sentence_of_a_claim_names_its_limit(claim: Claim) -> None:
    if claim.form.limit == 0:
        assert "no worse" in claim.sentence
    else:
        numbers = re.findall(r"\d+(?:\.\d+)?", claim.sentence.replace(",", ""))
        assert f"{abs(claim.form.limit):g}" in numbers
