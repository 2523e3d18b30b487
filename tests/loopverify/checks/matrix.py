"""The result of every check on every saboteur and every clean model for each seed, and the summary for the page
docs/saboteurs.md."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from loopverify.checks import CHECKS, CheckResult
from loopverify.checks.preserving import same, tensors_of
from loopverify.errors import unknown
from tests.loopverify.checks.clean import CLEAN, build
from tests.loopverify.checks.planting import Saboteur
from tests.loopverify.checks.saboteurs import SABOTEURS

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "saboteurs.json"
COMMAND = "python -m tests.loopverify.checks.matrix"
SEEDS = 20


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


def results(checks: Sequence[str], seeds: int) -> dict[str, Any]:
    """What docs/results/saboteurs.json holds of some checks."""
    return {
        "planted": [
            {"name": s.name, "check": s.check, "caught": sum(caught(s, tripped(s, seed)) for seed in range(seeds))}
            for s in SABOTEURS
            if s.check in checks
        ],
        "clean": {check: {family: _clean(check, family, seeds) for family in CLEAN} for check in checks},
    }


def _clean(check: str, family: str, seeds: int) -> dict[str, int]:
    found = [CHECKS[check].run(build(family, seed)) for seed in range(seeds)]
    applied = sum(result.status != "skipped" for result in found)
    return {"applied": applied, "false_alarms": len(false_alarms(found))}


def main(names: Sequence[str]) -> None:
    """Store the results of the checks named, all when none is, next to those of the others that are still there."""
    for name in names:
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if names else {"planted": [], "clean": {}}
    made = results(names or list(CHECKS), SEEDS)
    kept = [of for of in stored["planted"] if of["check"] in CHECKS and of["check"] not in made["clean"]]
    clean = {**stored["clean"], **made["clean"]}
    record = {
        "provenance": {"command": COMMAND, "torch": torch.__version__},
        "seeds": SEEDS,
        "planted": sorted([*kept, *made["planted"]], key=lambda of: list(CHECKS).index(of["check"])),
        "clean": {check: clean[check] for check in CHECKS if check in clean},
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
