"""The conformance suite of looped models: one generator of checks, three doors.

- `check_looped_model(model)` runs every check and needs no pytest;
- `@parametrize_with_checks([model])` turns `def test_mine(model, check): check(model)` into a test for each;
- `pytest --pyargs loopverify.checks --looped-model pkg.mod:factory` does so without a test of your own.

A check is a function of a subject (a model with tokens of its own) to a finding. A failure names the fault, the value
and its limit, the likely cause and the remedy. Limits are what rounding in the model's dtype explains, measured on the
model itself by disturbing its states. What a model cannot do is skipped; what it admits to (`TRAITS`) is explained,
and contradicted when it is not so.
"""

from __future__ import annotations

from loopverify.checks.check import Check
from loopverify.checks.conformance import CHECKS, check_looped_model, checks_for, parametrize_with_checks
from loopverify.checks.result import CheckResult, ConformanceError, NotApplicableError
from loopverify.checks.traits import TRAITS

__all__ = [
    "CHECKS",
    "TRAITS",
    "Check",
    "CheckResult",
    "ConformanceError",
    "NotApplicableError",
    "check_looped_model",
    "checks_for",
    "parametrize_with_checks",
]
