"""What the papers' tables measure on held-out batches: a model and pairs (tokens, targets) in, a frozen record out.

The model is left as it was. Every record carries its sample: tokens, loops, dtype, device, seed, versions.
"""

from __future__ import annotations

from loopverify.measures.choices import Answer, ChoiceScores, score_choices
from loopverify.measures.clamp import ClampEffect, clamp_effect, clamped
from loopverify.measures.decomposition import Decomposition, LoopUpdate, decompose
from loopverify.measures.held_out import Batches, Sample, over_batches, perplexity
from loopverify.measures.paired_choices import PairedAccuracy, PairedChoices, PairedMean, compare_choices
from loopverify.measures.questions import Question, read_questions
from loopverify.measures.radial import RadialSummary, radial_summary
from loopverify.measures.scale_sweep import ScalePoint, ScaleSweep, scale_sweep
from loopverify.measures.throughput import DepthSpeed, Throughput, throughput
from loopverify.measures.variable_depth import DepthPoint, VariableDepth, variable_depth

__all__ = [
    "Answer",
    "Batches",
    "ChoiceScores",
    "ClampEffect",
    "Decomposition",
    "DepthPoint",
    "DepthSpeed",
    "LoopUpdate",
    "PairedAccuracy",
    "PairedChoices",
    "PairedMean",
    "Question",
    "RadialSummary",
    "Sample",
    "ScalePoint",
    "ScaleSweep",
    "Throughput",
    "VariableDepth",
    "clamp_effect",
    "clamped",
    "compare_choices",
    "decompose",
    "over_batches",
    "perplexity",
    "radial_summary",
    "read_questions",
    "scale_sweep",
    "score_choices",
    "throughput",
    "variable_depth",
]
