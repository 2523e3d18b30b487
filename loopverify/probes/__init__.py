"""Read-only measurements on a live model: a trace (or a model) in, a frozen record out. `audit` makes all of them."""

from __future__ import annotations

from loopverify.probes.audit import audit
from loopverify.probes.carry import LoopCarry, mean_carry, over_loops, scale_carry
from loopverify.probes.compare import compare
from loopverify.probes.comparison import Comparison, Gap, LoopGaps, Parting
from loopverify.probes.depth import DepthUse, OvershootPoint, depth_use, exit_losses, overshoot, shorter
from loopverify.probes.findings import Facts, Findings, LoopRecord, StateVariable
from loopverify.probes.gradients import (
    RadialGradient,
    direct_gradients,
    indirect_gradients,
    radial_gradient,
    working_dtype,
)
from loopverify.probes.growth import GrowthLaw, fit_growth, mean_scales
from loopverify.probes.ledger import Update, attribute, updates
from loopverify.probes.norm_places import NormPlace, Placement
from loopverify.probes.norms import TokenNorms, token_norms
from loopverify.probes.placement import norm_placement
from loopverify.probes.readonly import untouched
from loopverify.probes.record import Audit
from loopverify.probes.sweep import Exit, SweepPoint, exit_sweep
from loopverify.probes.visibility import Signal, signals

__all__ = [
    "Audit",
    "Comparison",
    "DepthUse",
    "Exit",
    "Facts",
    "Findings",
    "Gap",
    "GrowthLaw",
    "LoopCarry",
    "LoopGaps",
    "LoopRecord",
    "NormPlace",
    "OvershootPoint",
    "Parting",
    "Placement",
    "RadialGradient",
    "Signal",
    "StateVariable",
    "SweepPoint",
    "TokenNorms",
    "Update",
    "attribute",
    "audit",
    "compare",
    "depth_use",
    "direct_gradients",
    "exit_losses",
    "exit_sweep",
    "fit_growth",
    "indirect_gradients",
    "mean_carry",
    "mean_scales",
    "norm_placement",
    "over_loops",
    "overshoot",
    "radial_gradient",
    "scale_carry",
    "shorter",
    "signals",
    "token_norms",
    "untouched",
    "updates",
    "working_dtype",
]
