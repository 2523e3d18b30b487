"""The matrix: every saboteur trips its own check, in words that name the fault, and no clean model trips any.

Two seeds; twenty, stored for docs/saboteurs.md, by `python -m tests.loopverify.checks.matrix`.
"""

from __future__ import annotations

import json

import pytest

from loopverify.checks import CHECKS
from tests.loopverify.checks.clean import CLEAN
from tests.loopverify.checks.matrix import COMMAND, RESULTS, caught, examined, false_alarms, tripped
from tests.loopverify.checks.planting import Saboteur
from tests.loopverify.checks.saboteurs import SABOTEURS

SEEDS = range(2)


def test_every_check_has_a_saboteur_and_every_saboteur_a_check() -> None:
    assert {saboteur.check for saboteur in SABOTEURS} == set(CHECKS)
    assert len({saboteur.name for saboteur in SABOTEURS}) == len(SABOTEURS)


@pytest.mark.parametrize("saboteur", SABOTEURS, ids=lambda saboteur: f"{saboteur.check}-{saboteur.name}")
def test_a_saboteur_trips_its_check_in_words_that_name_the_fault(saboteur: Saboteur) -> None:
    for seed in SEEDS:
        result = tripped(saboteur, seed)
        assert caught(saboteur, result), f"seed {seed}: {result}"


@pytest.mark.parametrize("saboteur", [s for s in SABOTEURS if s.alone], ids=lambda saboteur: saboteur.name)
def test_a_fault_that_every_check_would_feel_is_named_once(saboteur: Saboteur) -> None:
    model = saboteur.build(0)  # one seed suffices: the fault does not depend on weights
    results = [check.run(model) for check in CHECKS.values()]
    assert [result.id for result in results if result.status not in ("passed", "skipped")] == [saboteur.check]


@pytest.mark.parametrize("family", CLEAN)
def test_a_clean_model_trips_no_check_and_is_left_as_it_was(family: str) -> None:
    for seed in SEEDS:
        assert false_alarms(examined(family, seed)) == []


def test_every_check_passes_on_a_clean_model_that_has_what_it_needs() -> None:
    # A check that always skips would never fail.
    families = ("exit_gate", "shared_loop_norm", "rmsnorm")
    passed = {result.id for family in families for result in examined(family, 0) if result.status == "passed"}
    assert passed == set(CHECKS)


def test_the_stored_results_are_of_the_saboteurs_and_the_clean_models_that_there_are() -> None:
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    planted = {(fault["name"], fault["check"]) for fault in stored["planted"]}
    assert planted == {(s.name, s.check) for s in SABOTEURS}, f"run {COMMAND}, with the checks that changed"
    for check in CHECKS:
        assert list(stored["clean"].get(check, ())) == list(CLEAN), f"run {COMMAND} {check}"
