"""Reference looped models: the paper's transformer with its interventions, and tiny recurrences of known carry."""

from __future__ import annotations

from loopverify.models import recurrences
from loopverify.models.config import RECURRENCES, TransformerConfig
from loopverify.models.decoding import StepwiseDecode
from loopverify.models.readouts import READOUTS
from loopverify.models.transformer import LoopedTransformer

__all__ = ["READOUTS", "RECURRENCES", "LoopedTransformer", "StepwiseDecode", "TransformerConfig", "recurrences"]
