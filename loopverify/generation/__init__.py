"""Cached generation with the reference transformer: every (loop, layer) has its keys, and tokens may leave early.

generated = generate(module, [[5, 2], [7, 1, 3]], max_new_tokens=8, early_exit=EarlyExit(threshold=2.0))
"""

from __future__ import annotations

from loopverify.generation.decoder import Decoder, Step
from loopverify.generation.effect import ExitEffect, exit_effect
from loopverify.generation.exits import MISSING, EarlyExit
from loopverify.generation.generate import Generated, cached, generate

__all__ = ["MISSING", "Decoder", "EarlyExit", "ExitEffect", "Generated", "Step", "cached", "exit_effect", "generate"]
