"""Single loss terms: each maps a trace and its targets to one differentiable scalar.

Targets are (B, T) int64, the next token of every token; `IGNORE` leaves one out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Trace

__all__ = [
    "IGNORE",
    "exit_cross_entropy",
    "exit_entropy",
    "exit_weighted",
    "latent_distance",
    "norm_penalty",
    "per_loop",
    "terminal",
]

IGNORE = -100
"""Targets of this value are left out of every mean, as in torch.nn.functional.cross_entropy."""


def exit_cross_entropy(trace: Trace, targets: Tensor, loop: int) -> Tensor:
    """Mean cross-entropy (nats a token) of exit `loop` against targets (B, T) int64."""
    return _cross_entropy(trace, targets, loop, "mean")


def terminal(trace: Trace, targets: Tensor) -> Tensor:
    """Cross-entropy of the last exit only (nats a token)."""
    return exit_cross_entropy(trace, targets, trace.loops)


def per_loop(trace: Trace, targets: Tensor) -> Tensor:
    """Mean over the K exits of their cross-entropies (nats a token); Sharma & Vu 2026, section 3."""
    return torch.stack([exit_cross_entropy(trace, targets, k) for k in range(1, trace.loops + 1)]).mean()


def exit_weighted(trace: Trace, targets: Tensor) -> Tensor:
    """Expected cross-entropy of the exit a token takes, E[Σ_k p_k CE_k] (nats a token), with the model's own p.

    Ouro's first stage (arXiv:2510.25741) is this less a weighted `exit_entropy`; Sharma & Vu 2026, appendix 16.

    Raises:
        InputError: the model declares no exit probabilities.
    """
    losses = [_cross_entropy(trace, targets, k, "none").view(targets.shape) for k in range(1, trace.loops + 1)]
    return _mean_over((_exit_probabilities(trace) * torch.stack(losses, -1)).sum(-1), targets)


def exit_entropy(trace: Trace, targets: Tensor) -> Tensor:
    """Mean entropy of the exit distribution, E[−Σ_k p_k log p_k] (nats a token), between 0 and log K.

    Raises:
        InputError: the model declares no exit probabilities.
    """
    _check_targets(trace, targets)
    p = _exit_probabilities(trace)
    # A clamped logarithm has a finite slope at p = 0, where that of p log p has none.
    return _mean_over(-(p * p.clamp_min(torch.finfo(p.dtype).tiny).log()).sum(-1), targets)


def norm_penalty(trace: Trace, targets: Tensor | None = None) -> Tensor:
    """Mean over loops and tokens of the squared rms of H_1..H_K: K^-1 sum_k E||H_k||_rms^2 (rms units, not L2).

    Its radial derivative at one token, <dP/dH, H> / d in rms units, is 2 s^2 / (K * tokens): never zero for s > 0.
    """
    return torch.stack([_at_least_float32(state).square().mean() for state in trace.states[1:]]).mean()


def latent_distance(trace: Trace, targets: Tensor) -> Tensor:
    """Mean over loops and tokens of the squared distance of H_1..H_K to the embedded target, past any readout:
    K^-1 sum_k E||H_k - e||_rms^2 (rms units), e = embed(target) with no gradient into it.

    The per-loop latent loss of denoising-style loops (Sharma & Vu 2026, appendix 16, which gives no formula): every
    loop is to bring the state nearer to the clean latent of the token to be predicted, and near a fixed target a state
    can be at one scale only. (H_K in the place of e would not do: all states could grow together.) With e = 0 it is
    `norm_penalty`. Its radial derivative at one token is 2 (s^2 - <e, H> / d) / (K * tokens). The target is what
    `embed` gives as the model stands: in training mode with its dropout.
    """
    _check_targets(trace, targets)
    # Detached afterwards: under autocast, a weight cast without a graph would cut the next use of its cast, too.
    embedded, _ = trace.model.embed(targets.where(targets != IGNORE, trace.tokens))
    e = _at_least_float32(embedded.detach())
    distances = [(_at_least_float32(state) - e).square().mean(-1) for state in trace.states[1:]]
    return _mean_over(torch.stack(distances).mean(0), targets)


def _cross_entropy(trace: Trace, targets: Tensor, loop: int, reduction: str) -> Tensor:
    _check_targets(trace, targets)
    logits = _at_least_float32(trace.logits(loop)).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction=reduction)


def _check_targets(trace: Trace, targets: Tensor) -> None:
    if targets.dtype != torch.int64 or targets.shape != trace.tokens.shape:
        raise InputError(
            f"targets are {targets.dtype} {tuple(targets.shape)}; expected int64 {tuple(trace.tokens.shape)}, "
            f"one next token for every token ({IGNORE} leaves one out)"
        )


def _exit_probabilities(trace: Trace) -> Tensor:
    """(B, T, K), in float32 at least."""
    if trace.model.exit_probabilities is None:
        raise InputError(
            f"{trace.model.name} declares no exit probabilities, by which an exit-weighted loss weighs its exits; "
            "build it with TransformerConfig(exit_gate=True), or pass Looped(exit_probabilities=...)"
        )
    return _at_least_float32(trace.model.exit_probabilities(trace))


def _mean_over(values: Tensor, targets: Tensor) -> Tensor:
    """Mean of values (B, T) over the targets that count."""
    counts = targets != IGNORE
    return values.where(counts, 0.0).sum() / counts.sum()


def _at_least_float32(values: Tensor) -> Tensor:
    """A bfloat16 log-softmax loses the third digit of the loss, and its sums of squares the second."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
