"""What a run is, and what it would take."""

from __future__ import annotations

from train.spec.execution import ORDINARY, Execution, Parallel, Precision, precision_of
from train.spec.preset_fields import Preset
from train.spec.presets import PRESETS, preset
from train.spec.run_spec import PAPER_PENALTY, RunSpec

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
