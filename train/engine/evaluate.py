"""Held-out metrics of a model during and after training: those of Table 2, loop by loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch
from torch import Tensor

from loopverify.auditing.depth import exit_losses
from loopverify.auditing.norms import token_norms
from loopverify.looped import Looped, unroll
from loopverify.tasks import NOT_ASKED
from train.data.examples import Batch

__all__ = ["at_first_exit", "evaluate"]


def evaluate(
    model: Looped, batches: Iterable[Batch], by_depth: Mapping[int, Batch] = MappingProxyType({})
) -> dict[str, float]:
    """Metrics by flat name, loops k = 0..K.

    'norm@k', 'norm_median@k', 'norm_p99@k', 'norm_max@k': tokenwise ||H_k||_2; 'rms@k': its mean over tokens in rms
    units; 'ce@k' (k >= 1): nats per token at exit k of a run of the trained loops; 'ppl@k': its exponential.
    'accuracy_d@k' (k >= 1): fraction of the answers of `by_depth[d]` that are correct at exit k.
    """
    losses: list[list[float]] = []
    states: list[list[Tensor]] = []
    with _eval_mode(model):
        for tokens, targets in batches:
            trace = unroll(model, tokens)
            losses.append([float(loss) for loss in exit_losses(trace, targets)])
            states.append([state.float() for state in trace.states])
        accuracies = _accuracies(model, by_depth)
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
    return metrics | accuracies


def at_first_exit(history: Iterable[Mapping[str, float]], first_exit: float | None, loops: int) -> dict[str, float]:
    """Metrics at equal progress; empty if `first_exit` is None.

    'ce_matched@k' is 'ce@k' at the first evaluation with CE(1) <= `first_exit` (nats per token), and 'step_matched' its
    step; all are nan if there is no such evaluation.
    """
    if first_exit is None:
        return {}
    found = next((event for event in history if event["ce@1"] <= first_exit), {})
    matched = {f"ce_matched@{k}": found.get(f"ce@{k}", math.nan) for k in range(1, loops + 1)}
    return matched | {"step_matched": found.get("step", math.nan)}


def _accuracies(model: Looped, by_depth: Mapping[int, Batch]) -> dict[str, float]:
    found: dict[str, float] = {}
    for d, (tokens, targets) in by_depth.items():
        trace, answers = unroll(model, tokens), targets != NOT_ASKED
        for k in range(1, trace.loops + 1):
            right = trace.logits(k).argmax(-1) == targets
            found[f"accuracy_{d}@{k}"] = float(right[answers].double().mean())
    return found


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
