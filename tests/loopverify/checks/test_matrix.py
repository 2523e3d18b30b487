"""The matrix: every saboteur trips its own check, in words that name the fault, and no clean model trips any.

Two seeds by default. All twenty: LOOPVERIFY_SEEDS=20 pytest tests/loopverify/checks/test_matrix.py
"""

from __future__ import annotations

import functools
import os
import re

import pytest
import torch

from loopverify.checks import CHECKS, CheckResult
from loopverify.checks.guard import same, tensors_of
from tests.loopverify.checks.clean import CLEAN, build
from tests.loopverify.checks.planting import Saboteur
from tests.loopverify.checks.saboteurs import SABOTEURS

SEEDS = range(int(os.environ.get("LOOPVERIFY_SEEDS", "2")))


@functools.cache
def examined(family: str, seed: int) -> tuple[CheckResult, ...]:
    """What every check says of a clean model, which must be left as it was."""
    model = build(family, seed)
    for root in model.modules():
        root.train()
    before = [(name, tensor, tensor.detach().clone()) for name, tensor in tensors_of(model)]
    random_state = torch.get_rng_state()
    results = tuple(check.run(model) for check in CHECKS.values())
    after = dict(tensors_of(model))
    assert len(after) == len(before)
    for name, tensor, values in before:
        assert after[name] is tensor, f"{name} is another object"
        assert same(tensor, values), f"{name} has other values"
        assert tensor.grad is None
    assert all(module.training for root in model.modules() for module in root.modules())
    assert torch.equal(torch.get_rng_state(), random_state)
    return results


def test_every_check_has_a_saboteur_and_every_saboteur_a_check() -> None:
    assert {saboteur.check for saboteur in SABOTEURS} == set(CHECKS)
    assert len(CHECKS) == 45
    assert len({saboteur.name for saboteur in SABOTEURS}) == len(SABOTEURS)


@pytest.mark.parametrize("saboteur", SABOTEURS, ids=lambda saboteur: f"{saboteur.check}-{saboteur.name}")
def test_a_saboteur_trips_its_check_in_words_that_name_the_fault(saboteur: Saboteur) -> None:
    for seed in SEEDS:
        result = CHECKS[saboteur.check].run(saboteur.build(seed))
        assert result.status == "failed", f"seed {seed}: {result}"
        assert re.search(saboteur.words, result.message), f"seed {seed}: {result.message}"
        assert "Remedy: " in result.message


@pytest.mark.parametrize("saboteur", [s for s in SABOTEURS if s.alone], ids=lambda saboteur: saboteur.name)
def test_a_fault_that_every_check_would_feel_is_named_once(saboteur: Saboteur) -> None:
    for seed in SEEDS:
        model = saboteur.build(seed)
        results = [check.run(model) for check in CHECKS.values()]
        wrong = [result.id for result in results if result.status not in ("passed", "skipped")]
        assert wrong == [saboteur.check], f"seed {seed}: {wrong}"


@pytest.mark.parametrize("family", CLEAN)
def test_a_clean_model_trips_no_check_and_is_left_as_it_was(family: str) -> None:
    for seed in SEEDS:
        assert [str(r) for r in examined(family, seed) if r.status not in ("passed", "skipped")] == []


def test_every_check_passes_on_a_clean_model_that_has_what_it_needs() -> None:
    # A check that only ever skips would trip on nothing.
    families = ("exit_gate", "shared_loop_norm", "rmsnorm")
    passed = {result.id for family in families for result in examined(family, 0) if result.status == "passed"}
    assert passed == set(CHECKS)
