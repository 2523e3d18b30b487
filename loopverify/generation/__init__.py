"""Cached generation with any model that can decode. Models with keys for every (loop, layer) support early exits.

generated = generate(module, [[5, 2], [7, 1, 3]], max_new_tokens=8, early_exit=EarlyExit(threshold=2.0))
"""

from __future__ import annotations

from loopverify.generation.decoder import Decoder, Step
from loopverify.generation.early_exit import MISSING, EarlyExit
from loopverify.generation.effect import ExitEffect, exit_effect
from loopverify.generation.generate import PAD, Generated, NewTokens, generate, stream
from loopverify.generation.sampling import Sampling

__all__ = [
    "MISSING",
    "PAD",
    "Decoder",
    "EarlyExit",
    "ExitEffect",
    "Generated",
    "NewTokens",
    "Sampling",
    "Step",
    "exit_effect",
    "generate",
    "stream",
]
