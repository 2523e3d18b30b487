"""Held-out metrics of a model under training or trained: what Table 2 reports, loop by loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from loopverify.auditing.depth import exit_losses
from loopverify.auditing.norms import token_norms
from loopverify.looped import Looped, unroll

__all__ = ["evaluate"]


def evaluate(model: Looped, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Metrics by flat name, loops k = 0..K.

    'norm@k', 'norm_median@k', 'norm_p99@k', 'norm_max@k': tokenwise ||H_k||_2; 'rms@k': its mean over tokens in rms
    units; 'ce@k' (k >= 1): nats a token at exit k of a run of the trained loops; 'ppl@k': its exponential.
    """
    losses: list[list[float]] = []
    states: list[list[Tensor]] = []
    with _eval_mode(model):
        for tokens, targets in batches:
            trace = unroll(model, tokens)
            losses.append([float(loss) for loss in exit_losses(trace, targets)])
            states.append([state.float() for state in trace.states])
    metrics: dict[str, float] = {}
    for k, of_batches in enumerate(zip(*states, strict=True)):
        norms = token_norms(torch.cat([state.flatten(0, 1) for state in of_batches]))
        metrics |= {
            f"norm@{k}": norms.mean,
            f"norm_median@{k}": norms.median,
            f"norm_p99@{k}": norms.p99,
            f"norm_max@{k}": norms.max,
            f"rms@{k}": norms.mean / math.sqrt(of_batches[0].shape[-1]),
        }
    for k, of_exit in enumerate(zip(*losses, strict=True), start=1):
        ce = sum(of_exit) / len(of_exit)  # every batch holds the same number of tokens
        metrics |= {f"ce@{k}": ce, f"ppl@{k}": _exp(ce)}
    return metrics


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


@contextmanager
def _eval_mode(model: Looped) -> Iterator[None]:
    modules = [(m, m.training) for root in model.modules() for m in root.modules()]
    try:
        for module, _ in modules:
            module.training = False
        yield
    finally:
        for module, training in modules:
            module.training = training
