"""The claims on following pointers: of their own study, on their own conditions."""

from __future__ import annotations

from loopverify.claims import HOPS, claims_for


def test_the_study_has_claims_on_each_of_its_conditions_and_numbers_of_no_paper() -> None:
    claims = claims_for(["hops.depth"])
    assert {condition for claim in claims for condition in claim.conditions} == set(HOPS)
    assert not any(claim.published for claim in claims)
    assert not any(claim.needs for claim in claims)
