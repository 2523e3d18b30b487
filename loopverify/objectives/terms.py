"""Single loss terms: each maps a trace and its targets to one differentiable scalar.

Targets are (B, T) int64, the next token of every token; `IGNORE` excludes one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from loopverify.arguments import IGNORE
from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.objectives.chunked import weighted_sum

__all__ = [
    "exit_cross_entropy",
    "exit_entropy",
    "exit_weighted",
    "latent_distance",
    "norm_penalty",
    "per_loop",
    "terminal",
    "weighted_exits",
]


def exit_cross_entropy(trace: Trace, targets: Tensor, loop: int) -> Tensor:
    """Mean cross-entropy (nats per token) of exit `loop` against targets (B, T) int64."""
    return _cross_entropy(trace, targets, loop, "mean")


def terminal(trace: Trace, targets: Tensor, *, chunk_tokens: int | None = None) -> Tensor:
    """Cross-entropy of the last exit only (nats per token)."""
    return weighted_exits(trace, targets, {trace.loops: 1.0}, chunk_tokens=chunk_tokens)


def per_loop(trace: Trace, targets: Tensor, *, chunk_tokens: int | None = None) -> Tensor:
    """Mean over the K exits of their cross-entropies (nats per token); Sharma & Vu 2026, section 3."""
    weights = dict.fromkeys(range(1, trace.loops + 1), 1 / trace.loops)
    return weighted_exits(trace, targets, weights, chunk_tokens=chunk_tokens)


def exit_weighted(trace: Trace, targets: Tensor, *, chunk_tokens: int | None = None) -> Tensor:
    """Expected cross-entropy of the exit a token takes, E[Σ_k p_k CE_k] (nats per token), with the model's own p.

    Ouro's first stage (arXiv:2510.25741) is this less a weighted `exit_entropy`; Sharma & Vu 2026, appendix 16.

    Raises:
        InputError: the model declares no exit probabilities.
    """
    weights = dict(enumerate(_exit_probabilities(trace).unbind(-1), start=1))
    return weighted_exits(trace, targets, weights, chunk_tokens=chunk_tokens)


def weighted_exits(
    trace: Trace, targets: Tensor, weights: Mapping[int, float | Tensor], *, chunk_tokens: int | None = None
) -> Tensor:
    """Weighted sum of the cross-entropies of any exits, Σ_k E[w_k CE_k] (nats per token).

    Args:
        weights: exit (1..K) -> its weight, a number or one for each token (B, T), which may have a gradient.
        chunk_tokens: compute values and gradients together, in chunks of this many tokens, so that only the logits of
            one chunk are held (see `objectives.chunked`). The result agrees to rounding and is differentiable once,
            for one backward pass. None: the plain form, which keeps the logits of all exits.

    Raises:
        InputError: targets of the wrong shape or dtype, a nonexistent exit, or chunk_tokens below 1.
    """
    _check_targets(trace, targets)
    if unknown := weights.keys() - range(1, trace.loops + 1):
        raise InputError(f"weights for the exits {sorted(unknown)} of {trace.loops} loops; expected 1..{trace.loops}")
    if chunk_tokens is None:
        return torch.stack([_weighted_exit(trace, targets, k, weight) for k, weight in weights.items()]).sum()
    counts = targets != IGNORE
    one = _at_least_float32(trace.states[-1]).new_ones(())
    by_token = {k: (weight * one).where(counts, 0.0) for k, weight in weights.items()}
    return weighted_sum(trace, targets.where(counts, 0), by_token, chunk_tokens) / counts.sum()


def exit_entropy(trace: Trace, targets: Tensor) -> Tensor:
    """Mean entropy of the exit distribution, E[−Σ_k p_k log p_k] (nats per token), between 0 and log K.

    Raises:
        InputError: the model declares no exit probabilities.
    """
    _check_targets(trace, targets)
    p = _exit_probabilities(trace)
    # The derivative of p log p is infinite at p = 0; with the logarithm clamped it is finite.
    return _mean_over(-(p * p.clamp_min(torch.finfo(p.dtype).tiny).log()).sum(-1), targets)


def norm_penalty(trace: Trace, targets: Tensor | None = None) -> Tensor:
    """Mean over loops and tokens of the squared rms of H_1..H_K: K^-1 sum_k E||H_k||_rms^2 (rms units, not L2).

    Its radial derivative at one token, <dP/dH, H> / d in rms units, is 2 s^2 / (K * tokens): never zero for s > 0.
    """
    return torch.stack([_at_least_float32(state).square().mean() for state in trace.states[1:]]).mean()


def latent_distance(trace: Trace, targets: Tensor) -> Tensor:
    """Mean over loops and tokens of the squared distance of H_1..H_K to the embedded target, without any readout:
    K^-1 sum_k E||H_k - e||_rms^2 (rms units), e = embed(target) with no gradient into it.

    The per-loop latent loss of denoising-style loops (Sharma & Vu 2026, appendix 16, which gives no formula): every
    loop should bring the state nearer to the clean latent of the token to be predicted. A state near a fixed target has
    that target's scale, so the loss controls the scale. (H_K as the target would not: all states could grow together.)
    With e = 0 it is `norm_penalty`. Its radial derivative at one token is 2 (s^2 - <e, H> / d) / (K * tokens). `embed`
    is called in the model's current mode: in training mode, its dropout is active.
    """
    _check_targets(trace, targets)
    # Detached after the call, instead of called under no_grad: autocast caches casts of weights, and one made without a
    # graph would also cut the gradient of the next use of the weight.
    embedded, _ = trace.model.embed(targets.where(targets != IGNORE, trace.tokens))
    e = _at_least_float32(embedded.detach())
    distances = [(_at_least_float32(state) - e).square().mean(-1) for state in trace.states[1:]]
    return _mean_over(torch.stack(distances).mean(0), targets)


def _weighted_exit(trace: Trace, targets: Tensor, loop: int, weight: float | Tensor) -> Tensor:
    if not isinstance(weight, Tensor):
        return weight * _cross_entropy(trace, targets, loop, "mean")
    return _mean_over(weight * _cross_entropy(trace, targets, loop, "none").view(targets.shape), targets)


def _cross_entropy(trace: Trace, targets: Tensor, loop: int, reduction: str) -> Tensor:
    _check_targets(trace, targets)
    logits = _at_least_float32(trace.logits(loop)).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction=reduction)


def _check_targets(trace: Trace, targets: Tensor) -> None:
    if targets.dtype != torch.int64 or targets.shape != trace.tokens.shape:
        raise InputError(
            f"targets are {targets.dtype} {tuple(targets.shape)}; expected int64 {tuple(trace.tokens.shape)}, "
            f"one next token for every token ({IGNORE} excludes one)"
        )


def _exit_probabilities(trace: Trace) -> Tensor:
    """(B, T, K), in float32 or wider."""
    if trace.model.exit_probabilities is None:
        raise InputError(
            f"{trace.model.name} declares no exit probabilities, which an exit-weighted loss uses as weights; "
            "build it with TransformerConfig(exit_gate=True), or pass Looped(exit_probabilities=...)"
        )
    return _at_least_float32(trace.model.exit_probabilities(trace))


def _mean_over(values: Tensor, targets: Tensor) -> Tensor:
    """Mean of values (B, T) over the targets that are not `IGNORE`."""
    counts = targets != IGNORE
    return values.where(counts, 0.0).sum() / counts.sum()


def _at_least_float32(values: Tensor) -> Tensor:
    """In bfloat16, a log-softmax would lose the third digit of the loss, and sums of squares the second."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
