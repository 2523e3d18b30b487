"""Every claim of the registry: each verdict can come out, and the published numbers are the paper's."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from loopverify.claims import CLAIMS, Bound, Claim, claims_for, conditions_of, evaluate
from loopverify.errors import InputError
from tests.loopverify.claims.made_up import met, missed, runs

UNQUANTIFIED = {
    "P1.T12.turning.per_loop.rmsnorm",
    "P1.A16.latent.tens",
    "P1.A16.inter_loop_norm.capped",
    "P1.F5.sweep.with_norm",
    "P1.F5.sweep.without_norm",
    "P1.F7.converged",
    "P1.F7.overshoot",
}
"""Claims that the paper makes in words or in a figure."""

every_claim = pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)


@every_claim
def test_held(claim: Claim) -> None:
    evidence = evaluate(claim, runs(claim, [met(claim)] * 3))
    assert evidence.verdict == "held"
    assert evidence.margin is not None
    assert evidence.margin > 0


@every_claim
def test_contradicted(claim: Claim) -> None:
    evidence = evaluate(claim, runs(claim, [missed(claim)] * 3))
    assert evidence.verdict == "contradicted"
    assert evidence.margin is not None
    assert evidence.margin < 0


@every_claim
@pytest.mark.parametrize("seeds", [2, 3, 4])
def test_inconclusive_when_seeds_disagree(claim: Claim, seeds: int) -> None:
    mixed = [met(claim)] * (seeds - 1) + [missed(claim)]
    assert evaluate(claim, runs(claim, mixed)).verdict == "inconclusive"


@every_claim
def test_not_run_without_runs_or_metric(claim: Claim) -> None:
    nothing = evaluate(claim, [])
    assert nothing.verdict == "not run"
    takes = f"; it takes {claim.needs}" if claim.needs else ""
    assert nothing.basis == f"missing: {', '.join(f'runs of {condition}' for condition in claim.conditions)}{takes}"
    others = [run for run in runs(claim, [met(claim)]) if run.condition != claim.conditions[0]]
    assert evaluate(claim, others).basis == f"missing: runs of {claim.conditions[0]}{takes}"
    unmeasured = evaluate(claim, [replace(run, metrics={}) for run in runs(claim, [met(claim)])])
    assert (unmeasured.verdict, unmeasured.basis[:9]) == ("not run", "missing: ")


@every_claim
def test_a_single_seed_decides_by_effect_and_says_so(claim: Claim) -> None:
    held, contradicted = (evaluate(claim, runs(claim, [value])) for value in (met(claim), missed(claim)))
    assert (held.verdict, contradicted.verdict) == ("held", "contradicted")
    if not isinstance(claim.form, Bound):
        assert held.basis.startswith(
            "effect only, n = 1 and 1: no test can reach alpha = 0.05; use --seeds 3. "
            "Pairs of seeds that meet the least effect: 1 of 1"
        )


@every_claim
def test_the_paper_meets_its_own_claims(claim: Claim) -> None:
    assert claim.published or claim.id in UNQUANTIFIED or claim.study == "hops"
    assert set(claim.published) <= {"44m", "129m", "1.4b"}
    for effect in claim.published.values():
        assert effect >= claim.form.limit if claim.form.relation == "≥" else effect <= claim.form.limit


@every_claim
def test_ids_sources_and_sentences(claim: Claim) -> None:
    assert re.fullmatch(r"P1\.[TAF]\d+|hops\.depth", claim.table)
    assert claim.source.startswith("P1, ")
    assert all(len(condition.split("/")) in (2, 3) for condition in claim.conditions)
    assert claim.sentence.endswith(".")
    assert claim.alpha == 0.05
    assert claim.test in (
        "every seed within the bound",
        "exact one-sided rank test over seeds, its null shifted to the least effect",
    )


def test_selection_by_table() -> None:
    assert claims_for() == tuple(CLAIMS.values())
    assert claims_for([]) == ()
    assert {claim.table for claim in claims_for(["P1.T3", "P1.T4"])} == {"P1.T3", "P1.T4"}
    with pytest.raises(InputError, match=r"unknown table 'P9\.T1'; expected one of: P1\.A16, P1\.F5"):
        claims_for(["P9.T1"])


def test_the_conditions_of_table_2() -> None:
    assert set(conditions_of(claims_for(["P1.T2"]))) == {
        "terminal/rmsnorm",
        "terminal/raw",
        "per_loop/rmsnorm",
        "per_loop/raw",
        "per_loop/final_only",
        "terminal+penalty/rmsnorm",
        "per_loop+penalty/rmsnorm",
    }
    one = CLAIMS["P1.T2.drift.terminal.vs_raw"]
    assert conditions_of([one, one]) == ("terminal/rmsnorm", "terminal/raw")
