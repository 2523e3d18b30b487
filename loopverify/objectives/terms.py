"""Single loss terms: each maps a trace and its targets to one differentiable scalar."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Trace

__all__ = ["IGNORE", "exit_cross_entropy", "norm_penalty", "per_loop", "terminal"]

IGNORE = -100
"""Targets of this value are left out of every mean, as in torch.nn.functional.cross_entropy."""


def exit_cross_entropy(trace: Trace, targets: Tensor, loop: int) -> Tensor:
    """Mean cross-entropy (nats a token) of exit `loop` against targets (B, T) int64."""
    if targets.dtype != torch.int64 or targets.shape != trace.tokens.shape:
        raise InputError(
            f"targets are {targets.dtype} {tuple(targets.shape)}; expected int64 {tuple(trace.tokens.shape)}, "
            f"one next token for every token ({IGNORE} leaves one out)"
        )
    logits = _at_least_float32(trace.logits(loop)).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE)


def terminal(trace: Trace, targets: Tensor) -> Tensor:
    """Cross-entropy of the last exit only (nats a token)."""
    return exit_cross_entropy(trace, targets, trace.loops)


def per_loop(trace: Trace, targets: Tensor) -> Tensor:
    """Mean over the K exits of their cross-entropies (nats a token); Sharma & Vu 2026, section 3."""
    return torch.stack([exit_cross_entropy(trace, targets, k) for k in range(1, trace.loops + 1)]).mean()


def norm_penalty(trace: Trace) -> Tensor:
    """Mean over loops and tokens of the squared rms of H_1..H_K: K^-1 sum_k E||H_k||_rms^2 (rms units, not L2).

    Its radial derivative at one token, <dP/dH, H> / d in rms units, is 2 s^2 / (K * tokens): never zero for s > 0.
    """
    return torch.stack([_at_least_float32(state).square().mean() for state in trace.states[1:]]).mean()


def _at_least_float32(values: Tensor) -> Tensor:
    """A bfloat16 log-softmax loses the third digit of the loss, and its sums of squares the second."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
