"""The one list of metrics: that it is well formed, and that sources are held to it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from loopverify.claims import CLAIMS
from loopverify.claims.expression import names
from loopverify.claims.metrics import METRICS, check_source, metric, written

CLAMP = ["clamp_norm_ratio", "clamp_delta_ce", "clamp_abs_delta_ce"]


@pytest.mark.parametrize("kind", METRICS)
def test_every_kind_has_an_example_of_each_form_and_a_label(kind: str) -> None:
    listed = METRICS[kind]
    behind = {"state": "@0", "loop": "@1", "factor": "@0.1", "late": "@late", "": ""}
    assert listed.unit in {"L2", "rms", "nats", "×", ""}
    for at in listed.at:
        name = kind.replace("{d}", "2") + behind[at]
        assert metric(name) is listed
        label = written(name)
        assert label
        assert not re.search(r"[{}]", label)
        assert ("{k}" in listed.label) == bool(behind[at])


def test_every_claim_reads_listed_metrics_of_a_source_that_its_runs_have() -> None:
    sources = {claim.id: {metric(name).source for name in names(claim.metric)} for claim in CLAIMS.values()}
    assert {id_ for id_, of in sources.items() if "choices" in of} == {i for i in CLAIMS if i.startswith("P1.T7.")}
    assert {CLAIMS[id_].study for id_, of in sources.items() if "task" in of} == {"hops"}
    assert set().union(*(of for id_, of in sources.items() if CLAIMS[id_].study == "hops")) == {"training", "task"}


def test_a_source_gives_all_that_is_listed_for_it() -> None:
    check_source("clamp", CLAMP)
    # Kinds that only some runs have may be absent.
    check_source("sweep", ["sweep_span", "sweep_ce@1", "sweep_entropy@1", "sweep_margin@1"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (CLAMP[1:], "lacks those that it lists: ['clamp_norm_ratio']"),
        ([*CLAMP, "clamp_spread"], "does not list for it: ['clamp_spread']"),
        ([*CLAMP, "norm@4"], "does not list for it: ['norm@4']"),
        ([*CLAMP[1:], "clamp_norm_ratio@4"], "does not list for it: ['clamp_norm_ratio@4']"),
    ],
)
def test_a_source_that_gives_other_metrics_is_an_error(given: list[str], message: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(message)):
        check_source("clamp", given)


def test_claims_import_no_torch() -> None:
    code = "import sys, loopverify.claims; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
