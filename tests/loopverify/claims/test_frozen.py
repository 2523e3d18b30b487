"""No limit moves: every claim is what it was before its first run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import loopverify.claims
from loopverify.claims import CLAIMS, Claim
from tests.loopverify.claims.frozen import FROZEN

ROOM = Path(loopverify.claims.__file__).parent


def test_metrics_limits_units_and_alphas_are_frozen() -> None:
    found = {
        claim.id: (claim.metric, claim.form.relation, claim.form.limit, claim.unit, claim.alpha)
        for claim in CLAIMS.values()
    }
    assert found == FROZEN


@pytest.mark.parametrize("study", ["p1", "hops"])
def test_a_limit_is_written_in_one_file_only(study: str) -> None:
    """No claim has a number of its own: limits come from limits.py, published numbers from the data."""
    typed = [
        f"{path.name}: {ast.unparse(keyword)}"
        for path in (ROOM / study).glob("*.py")
        for keyword in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(keyword, ast.keyword)
        for part in ast.walk(keyword.value)
        if isinstance(part, ast.Constant)
        and (
            (keyword.arg in ("value", "least") and isinstance(part.value, int | float))
            or (keyword.arg == "published" and isinstance(part.value, float))
        )
    ]
    assert typed == []


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_the_sentence_of_a_claim_names_its_limit(claim: Claim) -> None:
    if claim.form.limit == 0:
        assert "no worse" in claim.sentence
    else:
        numbers = re.findall(r"\d+(?:\.\d+)?", claim.sentence.replace(",", ""))
        assert f"{abs(claim.form.limit):g}" in numbers
