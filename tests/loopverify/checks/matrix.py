"""The result of every check on every saboteur and every clean model for each seed, and the page of these results."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from loopverify.checks import CHECKS, CheckResult
from loopverify.checks.preserving import same, tensors_of
from tests.loopverify.checks.clean import CLEAN, build
from tests.loopverify.checks.planting import Saboteur
from tests.loopverify.checks.saboteurs import SABOTEURS

PAGE = Path(__file__).parents[3] / "docs" / "saboteurs.md"
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


def page(seeds: Sequence[int]) -> str:
    """docs/saboteurs.md: both tables, over these seeds."""
    return "\n".join([*_heading(len(seeds)), *_planted(seeds), "", *_clean(seeds)]) + "\n"


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every row of the page's tables, without their headings."""
    for line in text.splitlines():
        if line.startswith("| `"):
            yield [cell.strip(" `") for cell in line.strip("|").split("|")]


def _heading(seeds: int) -> Iterator[str]:
    yield "# Saboteurs and clean models"
    yield ""
    yield f"{len(SABOTEURS)} models with one planted fault each and {len(CLEAN)} models of other families without one,"
    yield f"every one with the weights of {seeds} seeds, on the CPU. A fault counts as caught when its check fails in"
    yield "words that name it; a false alarm is a check that fails or crashes on a clean model. The names are those of"
    yield "classes and families in `tests/loopverify/checks/`. Written by"
    yield ""
    yield "```"
    yield COMMAND.replace("=20", f"={seeds}")
    yield "```"
    yield ""


def _planted(seeds: Sequence[int]) -> Iterator[str]:
    yield "| fault planted | check that catches it | caught (seeds) |"
    yield "|---|---|---|"
    for saboteur in sorted(SABOTEURS, key=lambda saboteur: list(CHECKS).index(saboteur.check)):
        found = sum(caught(saboteur, tripped(saboteur, seed)) for seed in seeds)
        yield f"| `{saboteur.name}` | `{saboteur.check}` | {found} of {len(seeds)} |"


def _clean(seeds: Sequence[int]) -> Iterator[str]:
    yield "| clean family | checks that apply | false alarms (of checks times seeds) |"
    yield "|---|---|---|"
    for family in CLEAN:
        results = [result for seed in seeds for result in examined(family, seed)]
        apply = len({result.id for result in results if result.status != "skipped"})
        yield f"| `{family}` | {apply} of {len(CHECKS)} | {len(false_alarms(results))} of {len(results)} |"
