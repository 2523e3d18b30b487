"""What a run is, and what it would take."""

from __future__ import annotations

from train.spec.execution import ORDINARY, Execution, Parallel, Precision
from train.spec.presets import PRESETS, Preset, preset
from train.spec.run_spec import PAPER_PENALTY, RunSpec, code_digest

__all__ = [
    "ORDINARY",
    "PAPER_PENALTY",
    "PRESETS",
    "Execution",
    "Parallel",
    "Precision",
    "Preset",
    "RunSpec",
    "code_digest",
    "preset",
]
