"""Sequence-level halting: confidence scores, thresholds calibrated to a perplexity budget, batches that shrink, and the
speed-up in seconds (Sharma & Vu 2026, Table 13, Figure 4, appendix 17)."""

from __future__ import annotations

from loopverify.halting.calibration import Halting, HaltingRun, calibrate, halt, halting
from loopverify.halting.confidence import SCORES, HeadScore, Score, StateChange, Work
from loopverify.halting.dynamic_batch import DynamicRun, run_batches
from loopverify.halting.exit_table import ExitTable, exit_table
from loopverify.halting.frontier import Frontier, FrontierPoint, Rule, frontier, race
from loopverify.halting.low_rank import CertifiedMargin, LowRankMargin
from loopverify.halting.token_statistics import LinearHead, TokenStatistics, exit_statistics, linear_head

__all__ = [
    "SCORES",
    "CertifiedMargin",
    "DynamicRun",
    "ExitTable",
    "Frontier",
    "FrontierPoint",
    "Halting",
    "HaltingRun",
    "HeadScore",
    "LinearHead",
    "LowRankMargin",
    "Rule",
    "Score",
    "StateChange",
    "TokenStatistics",
    "Work",
    "calibrate",
    "exit_statistics",
    "exit_table",
    "frontier",
    "halt",
    "halting",
    "linear_head",
    "race",
    "run_batches",
]
