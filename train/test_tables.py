"""The other tables and figures of the first paper, for which trained models are measured: `-k T12` for one of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loopverify.claims import Claim, claims_for

CLAIMS = [claim for claim in claims_for() if claim.study == "P1" and claim.table != "P1.T2"]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_claim(claim: Claim, judge: Callable[[Claim], None]) -> None:
    judge(claim)
