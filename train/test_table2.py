"""Table 2 of the first paper (norms and perplexities by loss placement and readout) as claims on trained models."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loopverify.claims import Claim, claims_for


@pytest.mark.parametrize("claim", claims_for(["P1.T2"]), ids=lambda claim: claim.id)
def test_claim(claim: Claim, judge: Callable[[Claim], None]) -> None:
    judge(claim)
