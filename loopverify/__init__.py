"""loopverify: which variables does a looped language model carry that no loss can see?

Importing the package does not import torch: every public name is resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from loopverify._version import __version__

if TYPE_CHECKING:
    from loopverify import (
        adapters,
        auditing,
        checks,
        claims,
        comparing,
        errors,
        generation,
        halting,
        measures,
        models,
        objectives,
        report,
        stats,
        tasks,
        theory,
        watching,
    )
    from loopverify.adapters import adapt
    from loopverify.auditing.audit import audit
    from loopverify.auditing.findings import LoopRecord, StateVariable
    from loopverify.auditing.record import Audit
    from loopverify.checks import CheckResult, check_looped_model, checks_for, parametrize_with_checks
    from loopverify.comparing.compare import compare
    from loopverify.comparing.comparison import Comparison
    from loopverify.looped import Looped, Trace, unroll
    from loopverify.watching.watch import Watch

# public name -> module that defines it (None: the name is itself a module)
_LAZY: dict[str, str | None] = {
    "Audit": "loopverify.auditing.record",
    "CheckResult": "loopverify.checks",
    "Comparison": "loopverify.comparing.comparison",
    "LoopRecord": "loopverify.auditing.findings",
    "Looped": "loopverify.looped",
    "StateVariable": "loopverify.auditing.findings",
    "Trace": "loopverify.looped",
    "Watch": "loopverify.watching.watch",
    "adapt": "loopverify.adapters",
    "adapters": None,
    "audit": "loopverify.auditing.audit",
    "auditing": None,
    "check_looped_model": "loopverify.checks",
    "checks": None,
    "checks_for": "loopverify.checks",
    "claims": None,
    "compare": "loopverify.comparing.compare",
    "comparing": None,
    "errors": None,
    "generation": None,
    "halting": None,
    "measures": None,
    "models": None,
    "objectives": None,
    "parametrize_with_checks": "loopverify.checks",
    "report": None,
    "stats": None,
    "tasks": None,
    "theory": None,
    "unroll": "loopverify.looped",
    "watching": None,
}

__all__ = [
    "Audit",
    "CheckResult",
    "Comparison",
    "LoopRecord",
    "Looped",
    "StateVariable",
    "Trace",
    "Watch",
    "__version__",
    "adapt",
    "adapters",
    "audit",
    "auditing",
    "check_looped_model",
    "checks",
    "checks_for",
    "claims",
    "compare",
    "comparing",
    "errors",
    "generation",
    "halting",
    "measures",
    "models",
    "objectives",
    "parametrize_with_checks",
    "report",
    "stats",
    "tasks",
    "theory",
    "unroll",
    "watching",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'loopverify' has no attribute {name!r}; it has: {', '.join(__all__)}")
    home = _LAZY[name]
    module = importlib.import_module(home or f"loopverify.{name}")
    value = getattr(module, name) if home else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
