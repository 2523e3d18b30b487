"""Presets, run specifications and their execution, and estimates of what a run takes."""

from __future__ import annotations

from train.specification.execution import ORDINARY, Execution, Parallel, Precision, precision_of
from train.specification.preset_fields import Preset
from train.specification.presets import PRESETS, preset
from train.specification.run_spec import PAPER_PENALTY, RunSpec

__all__ = [
    "ORDINARY",
    "PAPER_PENALTY",
    "PRESETS",
    "Execution",
    "Parallel",
    "Precision",
    "Preset",
    "RunSpec",
    "precision_of",
    "preset",
]
