"""The result of every check on every saboteur and every clean model for each seed, and the summary for the page
docs/saboteurs.md."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from loopverify.checks import CHECKS, CheckResult
from loopverify.checks.preserving import same, tensors_of
from tests.loopverify.checks.clean import CLEAN, build
from tests.loopverify.checks.planting import Saboteur
from tests.loopverify.checks.saboteurs import SABOTEURS

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "saboteurs.json"
COMMAND = "LOOPVERIFY_SEEDS=20 pytest tests/loopverify/checks/test_matrix.py"


@functools.cache
def tripped(saboteur: Saboteur, seed: int) -> CheckResult:
    """The result of a saboteur's own check."""
    return CHECKS[saboteur.check].run(saboteur.build(seed))


def caught(saboteur: Saboteur, result: CheckResult) -> bool:
    """Whether the check failed with a message that names the fault and a remedy."""
    named = re.search(saboteur.words, result.message) is not None
    return result.status == "failed" and named and "Remedy: " in result.message


@functools.cache
def examined(family: str, seed: int) -> tuple[CheckResult, ...]:
    """The results of all checks on a clean model, which must be left unchanged."""
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


def false_alarms(results: Sequence[CheckResult]) -> list[str]:
    """The results of a clean model other than 'passed' and 'skipped'."""
    return [str(result) for result in results if result.status not in ("passed", "skipped")]


def results(seeds: Sequence[int]) -> dict[str, Any]:
    """What docs/results/saboteurs.json holds of these seeds, in the order of the lists."""
    planted = [
        {"name": s.name, "check": s.check, "caught": sum(caught(s, tripped(s, seed)) for seed in seeds)}
        for s in SABOTEURS
    ]
    provenance = {"command": COMMAND.replace("=20", f"={len(seeds)}"), "torch": torch.__version__}
    clean = [_clean(family, seeds) for family in CLEAN]
    return {"provenance": provenance, "seeds": len(seeds), "checks": len(CHECKS), "planted": planted, "clean": clean}


def _clean(family: str, seeds: Sequence[int]) -> dict[str, Any]:
    found = [result for seed in seeds for result in examined(family, seed)]
    apply = len({result.id for result in found if result.status != "skipped"})
    return {"family": family, "apply": apply, "false_alarms": len(false_alarms(found)), "results": len(found)}
