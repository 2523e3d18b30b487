"""The audit and its parts: which variables a looped model carries from loop to loop that its objective cannot see.

`audit` measures all that one batch can show. Each part takes a trace and returns a frozen record. Nothing here changes
the model.
"""

from __future__ import annotations

from loopverify.auditing.audit import audit
from loopverify.auditing.carry import LastingCarry, LoopCarry, lasting_mean, lasting_scale, mean_carry, scale_carry
from loopverify.auditing.depth import DepthUse, OvershootPoint, depth_use, overshoot
from loopverify.auditing.exit_sweep import Exit, SweepPoint, exit_sweep
from loopverify.auditing.findings import LoopRecord, StateVariable
from loopverify.auditing.gradients import RadialGradient
from loopverify.auditing.growth import GrowthLaw, fit_growth
from loopverify.auditing.ledger import Update, attribute, updates
from loopverify.auditing.norms import TokenNorms, token_norms
from loopverify.auditing.record import Audit
from loopverify.auditing.visibility import Signal, signals

__all__ = [
    "Audit",
    "DepthUse",
    "Exit",
    "GrowthLaw",
    "LastingCarry",
    "LoopCarry",
    "LoopRecord",
    "OvershootPoint",
    "RadialGradient",
    "Signal",
    "StateVariable",
    "SweepPoint",
    "TokenNorms",
    "Update",
    "attribute",
    "audit",
    "depth_use",
    "exit_sweep",
    "fit_growth",
    "lasting_mean",
    "lasting_scale",
    "mean_carry",
    "overshoot",
    "scale_carry",
    "signals",
    "token_norms",
    "updates",
]
