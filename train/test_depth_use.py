"""Depth use on a task that needs depth, as claims on models trained for it: `pytest train -k depth_use --seeds 3`.

The task has a protocol of its own at the size of the preset tiny, and is passed over at any other. Its runs are no part
of a table, so that they are trained only when the experiment is asked for by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from loopverify import report
from loopverify.claims import Claim, Run, claims_for, evaluate
from train.depth_use import PROTOCOL, arm_runs, ensure_all
from train.study.verdicts import Verdicts

CLAIMS = claims_for(["hops.depth"])


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, verdicts: Verdicts) -> Iterator[list[Run]]:
    """The runs of every arm, trained or found; in the end, the report on all claims."""
    study, config = verdicts.study, request.config
    if study.preset.name != "tiny":
        pytest.skip(f"not run: the task is for the preset tiny, not for {study.preset.name}")
    if "depth_use" not in " ".join([config.option.keyword, *config.args]):
        pytest.skip("not run: an experiment of its own, a quarter of an hour for three seeds; ask for it: -k depth_use")
    steps = config.getoption("--steps")
    protocol = PROTOCOL if steps is None else replace(PROTOCOL, steps=steps)
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        runs = ensure_all(arm_runs(study.seeds, protocol), study.store, workers=config.getoption("--workers"))
    yield runs
    made = report.build(runs, CLAIMS, title="Depth use on a task that needs depth")
    files = report.write(made, study.store.root / "report-depth-use")
    with capture.global_and_fixture_disabled():
        print(f"\n{made.to_text()}", *(f"report: {file}" for file in files), sep="\n")  # noqa: T201 - a report


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_claim(claim: Claim, trained: list[Run], verdicts: Verdicts) -> None:
    outcome, told = verdicts.outcome(evaluate(claim, trained))
    if outcome == "xfailed":
        pytest.xfail(told)
    elif outcome == "failed":
        pytest.fail(told, pytrace=False)
