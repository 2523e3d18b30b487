"""Depth use on a task that needs depth, as claims on models trained for it: `pytest train -k hops --seeds 3`.

The task has a preset of its own, `hops`, at the size of the preset tiny. It is no part of a table, so that its runs are
trained only when the experiment is asked for by name, with `-k hops`, `-k depth_use` or `--preset hops`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loopverify.claims import Claim, claims_for


@pytest.mark.parametrize("claim", claims_for(["hops.depth"]), ids=lambda claim: claim.id)
def test_hops(claim: Claim, judge: Callable[[Claim], None]) -> None:
    judge(claim)
