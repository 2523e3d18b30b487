"""Every claim, judged on trained models; `-k T2`, `-k T12` and `-k hops` select claims by id.

Claims on the task `hops` belong to no table: their models are trained only if `-k hops` or `--preset hops` is given.
"""

from __future__ import annotations

import pytest

from loopverify.claims import CLAIMS, Claim
from train.specification import preset
from train.study.verdicts import Verdicts


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_claim(claim: Claim, verdicts: tuple[Verdicts, ...]) -> None:
    """The claim holds, or falls short as `EXPECTED_SHORTFALLS` says."""
    own = next((one for one in verdicts if one.covers(claim)), None)
    if own is None:
        pytest.skip(_not_covered(verdicts[0].study.preset.name))
    outcome, message = own.outcome(own.judge(claim))
    if outcome == "skipped":
        pytest.skip(message)
    elif outcome == "xfailed":
        pytest.xfail(message)
    elif outcome == "failed":
        pytest.fail(message, pytrace=False)


def _not_covered(chosen: str) -> str:
    """Why a claim is not judged at the chosen preset."""
    if preset(chosen).task is not None:
        return f"not run: the claim is on text, and the preset {chosen} trains on a task"
    remedy = "select it with -k hops" if chosen == "tiny" else f"use the preset tiny or hops instead of {chosen}"
    return f"not run: a separate experiment on a task, a quarter of an hour for three seeds; {remedy}"
