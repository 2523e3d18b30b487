"""Claims as records: what they raise, and what they say of themselves."""

from __future__ import annotations

import re
from typing import Any

import pytest

from loopverify.claims import Bound, Claim, Comparison
from loopverify.errors import InputError

BOUND = Bound(condition="a/b", side="at most", limit=1.0)
RATIO = Comparison(left="a/b", right="c/d", by="ratio", limit=2.0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Comparison(left="a", right="b", by="sum", limit=1), "unknown kind of effect 'sum'"),  # type: ignore[arg-type]
        (lambda: Bound(condition="a", side="near", limit=1), "unknown side of a bound 'near'"),  # type: ignore[arg-type]
        (lambda: Claim(id="a.b", sentence="", source="", metric="2", form=BOUND), "metric is '2'"),
        (lambda: Claim(id="a.b", sentence="", source="", metric="ce@1", form=BOUND, alpha=0), r"alpha of a\.b is 0"),
    ],
)
def test_refusals(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


@pytest.mark.parametrize("form", [BOUND, RATIO], ids=["bound", "ratio"])
@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("nrom@4", "unknown metric 'nrom@4'; did you mean 'norm@4'?"),
        ("ce@1-cee@4", "unknown metric 'cee@4'; did you mean 'ce@4'?"),
        ("norm@x", "metric is 'norm@x'; expected 'norm@4' (a loop k >= 0)"),
        ("norm", "metric is 'norm'; expected 'norm@4' (a loop k >= 0)"),
        ("ce@", "metric is 'ce@'; expected 'ce@4' (a loop k >= 1)"),
        ("ce@0", "metric is 'ce@0'; expected 'ce@4' (a loop k >= 1)"),
        ("ce@04", "metric is 'ce@04'; expected 'ce@4' (a loop k >= 1)"),
        ("a_rad@9x", "metric is 'a_rad@9x'; expected 'a_rad@4' (a loop k >= 1) or 'a_rad@late'"),
        ("growth_gap@3", "metric is 'growth_gap@3'; expected 'growth_gap@late'"),
        ("sweep_ce@late", "metric is 'sweep_ce@late'; expected 'sweep_ce@0.1' (a factor)"),
        ("clamp_delta_ce@4", "metric is 'clamp_delta_ce@4'; expected 'clamp_delta_ce' alone"),
        ("haltng_loops", "unknown metric 'haltng_loops'; did you mean 'halting_loops'?"),
        ("acuracy_2@4", "unknown metric 'acuracy_2@4'; did you mean 'accuracy_2@4'?"),
        ("accuracy@4", "unknown metric 'accuracy@4'; did you mean 'accuracy_1@4'?"),
        ("zzz@4", "unknown metric 'zzz@4'; expected one of: norm, norm_median, "),
        ("ce@1-norm@1", "metric 'ce@1-norm@1' subtracts L2 from nats"),
    ],
)
def test_a_misspelt_metric_is_refused_where_the_claim_is_made(
    metric: str, message: str, form: Bound | Comparison
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Claim(id="a.b", sentence="", source="", metric=metric, form=form)


def test_study_and_table_are_parts_of_the_id() -> None:
    claim = Claim(id="hops.depth.uses.raw", sentence="", source="", metric="ce@1", form=BOUND)
    assert (claim.study, claim.table) == ("hops", "hops.depth")
