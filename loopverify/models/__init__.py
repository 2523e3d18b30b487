"""Reference looped models: the paper's transformer with its interventions, and tiny recurrences of known carry."""

from __future__ import annotations

from loopverify.models import recurrences
from loopverify.models.config import FURTHER_READOUTS, READOUTS, RECURRENCES, TransformerConfig
from loopverify.models.transformer import LoopedTransformer

__all__ = ["FURTHER_READOUTS", "READOUTS", "RECURRENCES", "LoopedTransformer", "TransformerConfig", "recurrences"]
