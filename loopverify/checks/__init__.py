"""The conformance suite of looped models: one generator of checks, three doors.

- `check_looped_model(model)` runs every check and needs no pytest;
- `@parametrize_with_checks([model])` turns `def test_mine(model, check): check(model)` into one test per check;
- `pytest --pyargs loopverify.checks --looped-model pkg.mod:factory` does the same without a test file.

A check maps a subject (a model with tokens drawn for it) to a finding. A failure names the fault, the value and its
limit, the likely cause and the remedy. Limits are what rounding in the model's dtype explains, measured on the model
itself by perturbing its states (see `checks.subject`). A check whose parts the model lacks is skipped. A model may
declare a trait (`TRAITS`) that explains a failure: the check is then skipped, and fails if the model does not show the
trait.
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
