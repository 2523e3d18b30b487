"""loopverify check: checks that hold, fall short, or were expected to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.loopverify.cli.calls import Cli


def test_checks_hold_or_fall_short(cli: Cli, folder: Path) -> None:
    status, out, _ = cli("check", "mine:hidden", "--json", "checks.json")
    records = json.loads((folder / "checks.json").read_text())
    assert status == 0
    assert {record["status"] for record in records} == {"passed", "skipped"}
    assert out.rstrip().splitlines()[-1].startswith(f"looped_transformer/rmsnorm: {len(records)} checks, ")
    assert all(record["id"] in out for record in records)


def test_a_failed_check_is_shown_in_full_and_last_and_can_be_expected(cli: Cli) -> None:
    status, out, _ = cli("check", "mine:uneven")
    lines = [line for line in out.splitlines() if line.startswith(("passed", "failed"))]
    failing = [line.split()[1] for line in lines if line.startswith("failed")]
    assert status == 1
    assert "same_readout" in failing
    assert [line.split()[0] for line in lines] == ["passed"] * (len(lines) - len(failing)) + ["failed"] * len(failing)
    assert "Remedy: use one readout for all exits" in " ".join(out.split())

    expected = [f"{name}=known, a = b" for name in failing]
    status, out, _ = cli("check", "mine:uneven", "--expect", *expected[:1], "--expect", *expected[-1:], *expected[1:])
    assert status == 0
    assert "expected (known, a = b)" in out


def test_a_step_in_place_is_not_skipped_over(cli: Cli) -> None:
    status, out, _ = cli("check", "mine:in_place")
    assert status == 1
    assert ["failed", "state_memory"] in [line.split()[:2] for line in out.splitlines()]


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        ("state_memory", "--expect 'state_memory'; expected the id of a check and why it fails: id=why"),
        ("nonsense=because", "unknown check 'nonsense'"),
    ],
)
def test_expectations_without_a_reason_or_a_check_are_wrong_use(cli: Cli, expectation: str, message: str) -> None:
    status, _, err = cli("check", "mine:hidden", "--expect", expectation)
    assert status == 2
    assert message in err


def test_an_expectation_that_no_longer_holds_falls_short(cli: Cli) -> None:
    status, out, _ = cli("check", "mine:hidden", "--expect", "determinism=flaky once")
    assert status == 1
    assert "expected to fail (flaky once), but passes" in " ".join(out.split())
