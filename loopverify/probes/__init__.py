"""Read-only measurements on a live model: a trace, or a model and batches, in; a frozen record out.

`audit` makes all that one batch can tell. What the paper's tables report of held-out batches stands beside it:
`clamp_effect`, `variable_depth`, `decompose`, `radial_summary`, `scale_sweep`, `score_choices` and `compare_choices`,
`throughput`, `halting`, `frontier`.
"""

from __future__ import annotations

from loopverify.probes.audit import audit
from loopverify.probes.carry import (
    LastingCarry,
    LoopCarry,
    lasting_mean,
    lasting_scale,
    mean_carry,
    over_loops,
    scale_carry,
)
from loopverify.probes.choices import Answer, ChoiceScores, score_choices
from loopverify.probes.clamp import ClampEffect, clamp_effect, clamped
from loopverify.probes.compare import compare
from loopverify.probes.comparison import Comparison, Gap, LoopGaps, Parting
from loopverify.probes.confidence import SCORES, HeadScore, Score, StateChange, Work
from loopverify.probes.decomposition import Decomposition, LoopUpdate, decompose
from loopverify.probes.depth import DepthUse, OvershootPoint, depth_use, exit_losses, overshoot
from loopverify.probes.dynamic_batch import DynamicRun, run_batches
from loopverify.probes.exit_table import ExitTable, exit_table
from loopverify.probes.findings import Facts, Findings, LoopRecord, StateVariable
from loopverify.probes.frontier import Frontier, FrontierPoint, Rule, frontier, race
from loopverify.probes.gradients import (
    RadialGradient,
    direct_gradients,
    indirect_gradients,
    radial_gradient,
    working_dtype,
)
from loopverify.probes.growth import GrowthLaw, fit_growth, mean_scales
from loopverify.probes.halting import Halting, HaltingRun, calibrate, halt, halting
from loopverify.probes.heldout import Batches, Sample, over_batches, perplexity
from loopverify.probes.ledger import Update, attribute, updates
from loopverify.probes.low_rank import CertifiedMargin, LowRankMargin
from loopverify.probes.norm_places import NormPlace, Placement
from loopverify.probes.norms import TokenNorms, token_norms
from loopverify.probes.paired_choices import PairedAccuracy, PairedChoices, PairedMean, compare_choices
from loopverify.probes.placement import norm_placement
from loopverify.probes.questions import Question, read_questions
from loopverify.probes.radial import RadialSummary, radial_summary
from loopverify.probes.reading import LinearHead, Reading, linear_head, read
from loopverify.probes.readonly import untouched
from loopverify.probes.record import Audit
from loopverify.probes.scale_sweep import ScalePoint, ScaleSweep, scale_sweep
from loopverify.probes.sweep import Exit, SweepPoint, exit_sweep
from loopverify.probes.throughput import DepthSpeed, Throughput, throughput
from loopverify.probes.turns import median_ratio, take_turns
from loopverify.probes.variable_depth import DepthPoint, VariableDepth, variable_depth
from loopverify.probes.visibility import Signal, signals
from loopverify.probes.watch import DriftWarning, Look, Watch

__all__ = [
    "SCORES",
    "Answer",
    "Audit",
    "Batches",
    "CertifiedMargin",
    "ChoiceScores",
    "ClampEffect",
    "Comparison",
    "Decomposition",
    "DepthPoint",
    "DepthSpeed",
    "DepthUse",
    "DriftWarning",
    "DynamicRun",
    "Exit",
    "ExitTable",
    "Facts",
    "Findings",
    "Frontier",
    "FrontierPoint",
    "Gap",
    "GrowthLaw",
    "Halting",
    "HaltingRun",
    "HeadScore",
    "LastingCarry",
    "LinearHead",
    "Look",
    "LoopCarry",
    "LoopGaps",
    "LoopRecord",
    "LoopUpdate",
    "LowRankMargin",
    "NormPlace",
    "OvershootPoint",
    "PairedAccuracy",
    "PairedChoices",
    "PairedMean",
    "Parting",
    "Placement",
    "Question",
    "RadialGradient",
    "RadialSummary",
    "Reading",
    "Rule",
    "Sample",
    "ScalePoint",
    "ScaleSweep",
    "Score",
    "Signal",
    "StateChange",
    "StateVariable",
    "SweepPoint",
    "Throughput",
    "TokenNorms",
    "Update",
    "VariableDepth",
    "Watch",
    "Work",
    "attribute",
    "audit",
    "calibrate",
    "clamp_effect",
    "clamped",
    "compare",
    "compare_choices",
    "decompose",
    "depth_use",
    "direct_gradients",
    "exit_losses",
    "exit_sweep",
    "exit_table",
    "fit_growth",
    "frontier",
    "halt",
    "halting",
    "indirect_gradients",
    "lasting_mean",
    "lasting_scale",
    "linear_head",
    "mean_carry",
    "mean_scales",
    "median_ratio",
    "norm_placement",
    "over_batches",
    "over_loops",
    "overshoot",
    "perplexity",
    "race",
    "radial_gradient",
    "radial_summary",
    "read",
    "read_questions",
    "run_batches",
    "scale_carry",
    "scale_sweep",
    "score_choices",
    "signals",
    "take_turns",
    "throughput",
    "token_norms",
    "untouched",
    "updates",
    "variable_depth",
    "working_dtype",
]
