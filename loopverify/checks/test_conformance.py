"""The conformance suite as tests: `pytest --pyargs loopverify.checks --looped-model pkg.mod:factory`.

The plugin `loopverify.pytest_plugin` fills in the arguments, one test for every check.
"""

from __future__ import annotations

from loopverify.checks.check import Check
from loopverify.looped import Looped


def test_conformance(conformance_model: Looped, conformance_check: Check) -> None:
    conformance_check(conformance_model)
