"""loopverify: which variables does a looped language model carry that no loss can see?

Importing the package does not import torch: every public name is resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from loopverify._version import __version__

if TYPE_CHECKING:
    from loopverify import checks, claims, generation, models, objectives, probes, report, stats, theory
    from loopverify.adapters import adapt
    from loopverify.checks import CheckResult, check_looped_model, checks_for, parametrize_with_checks
    from loopverify.looped import Looped, Trace, unroll
    from loopverify.probes import Audit, Comparison, LoopRecord, StateVariable, Watch, audit, compare

# public name -> module that defines it (None: the name is itself a subpackage)
_LAZY: dict[str, str | None] = {
    "Audit": "loopverify.probes",
    "CheckResult": "loopverify.checks",
    "Comparison": "loopverify.probes",
    "LoopRecord": "loopverify.probes",
    "Looped": "loopverify.looped",
    "StateVariable": "loopverify.probes",
    "Trace": "loopverify.looped",
    "Watch": "loopverify.probes",
    "adapt": "loopverify.adapters",
    "audit": "loopverify.probes",
    "check_looped_model": "loopverify.checks",
    "checks": None,
    "checks_for": "loopverify.checks",
    "claims": None,
    "compare": "loopverify.probes",
    "generation": None,
    "models": None,
    "objectives": None,
    "parametrize_with_checks": "loopverify.checks",
    "probes": None,
    "report": None,
    "stats": None,
    "theory": None,
    "unroll": "loopverify.looped",
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
    "audit",
    "check_looped_model",
    "checks",
    "checks_for",
    "claims",
    "compare",
    "generation",
    "models",
    "objectives",
    "parametrize_with_checks",
    "probes",
    "report",
    "stats",
    "theory",
    "unroll",
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
