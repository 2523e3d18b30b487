"""Reference looped models."""

from __future__ import annotations

from loopverify.models.transformer import READOUTS, LoopedTransformer, TransformerConfig

__all__ = ["READOUTS", "LoopedTransformer", "TransformerConfig"]
