"""Quality and speed at equal depth: cross-entropy and tokens per second at K = 1..N (Sharma & Vu 2026, Table 8).

Times are interleaved (`time_interleaved`), and a ratio is the median of the ratios within the rounds. Seconds depend on
the machine; ratios and counted work can be compared between machines.

Shapes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from loopverify.auditing.depth import overshoot
from loopverify.errors import InputError
from loopverify.looped import Looped, Trace
from loopverify.measures.held_out import Batches, Sample, batch_pairs, over_batches, perplexity, pooled
from loopverify.measures.timing import Clock, time_interleaved
from loopverify.readonly import untouched

__all__ = ["DepthSpeed", "Throughput", "throughput"]


@dataclass(frozen=True, kw_only=True)
class DepthSpeed:
    """A model run for K loops and read at the last exit."""

    loops: int
    """K, the counted calls of the step."""
    head_products: int
    """The counted number of token states multiplied by the head."""
    loss: float
    """Cross-entropy of the last exit of a run of K loops, nats per token."""
    tokens_per_second: float
    """Median over repeats, on this machine; not comparable with other machines."""
    speedup: float
    """Speed relative to the same model at the largest depth, median over repeats."""
    against_first: float
    """Speed relative to the first model at the same depth, median over repeats; 1 for the first model."""

    @property
    def perplexity(self) -> float:
        """exp(loss), per token."""
        return perplexity(self.loss)


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """One model at every depth."""

    depths: tuple[DepthSpeed, ...]
    """K = 1..N."""
    repeats: int
    sample: Sample


_Seconds = dict[tuple[int, int], float]
"""Seconds by (index of the model, loops)."""


def throughput(
    models: Looped | Sequence[Looped],
    batches: Batches,
    loops: int | None = None,
    *,
    repeats: int = 5,
    warmup: int = 1,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> tuple[Throughput, ...]:
    """Measure models at K = 1..loops, side by side, on the same batches.

    A run is embedding, K steps and one readout, without gradients. The first batch is timed; all are scored.

    Args:
        models: one or more; the others are compared with the first.
        batches: pairs (tokens, targets), each (B, T) int64.
        loops: N; the fewest trained loops among the models when omitted.
        repeats: timed rounds, after `warmup` untimed ones.
        clock: seconds, from any start.

    Raises:
        InputError: there are no models, repeats or loops are below 1, or the batches are invalid.
    """
    models = [models] if isinstance(models, Looped) else list(models)
    if not models:
        raise InputError("no models; expected at least one loopverify.Looped")
    pairs = list(batches)
    for model in models:
        batch_pairs(model, pairs)
    loops = min(model.trained_loops for model in models) if loops is None else loops
    quality = [_quality(model, pairs, loops, seed) for model in models]
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(untouched(model, seed))
        stack.enter_context(torch.no_grad())
        tokens = pairs[0][0].clone()  # a copy, so that no part of a model can change the caller's
        work = [[_counted(model, tokens, k) for k in range(1, loops + 1)] for model in models]
        jobs = {
            (place, k): partial(_run, model, tokens, k)
            for k in range(1, loops + 1)
            for place, model in enumerate(models)
        }
        timed = time_interleaved(list(jobs.values()), repeats=repeats, warmup=warmup, clock=clock, device=tokens.device)
    rounds = [dict(zip(jobs, seconds, strict=True)) for seconds in timed]
    return tuple(
        Throughput(depths=_depths(place, work[place], losses, rounds, tokens.numel()), repeats=repeats, sample=sample)
        for place, (sample, losses) in enumerate(quality)
    )


def _quality(model: Looped, pairs: Batches, loops: int, seed: int) -> tuple[Sample, tuple[float, ...]]:
    def measure(trace: Trace, targets: Tensor) -> list[float]:
        return [point.loss for point in overshoot(trace, targets)]

    sample, rows = over_batches(model, pairs, loops, measure, seed=seed)
    return sample, pooled(rows, sample.counts)


def _run(model: Looped, tokens: Tensor, loops: int) -> Tensor:
    """Logits of the last exit; unlike `unroll`, nothing is checked and no earlier state is kept."""
    state, context = model.embed(tokens)
    for loop in range(1, loops + 1):
        state = model.step(state, context, loop)
    return model.readout(state, context, loops, loops)


def _counted(model: Looped, tokens: Tensor, loops: int) -> tuple[int, int]:
    """Calls of the step, and tokens that the head reads, in one run."""
    steps, read = 0, 0

    def step(state: Tensor, context: object, loop: int) -> Tensor:
        nonlocal steps
        steps += 1
        return model.step(state, context, loop)

    def readout(state: Tensor, context: object, loop: int, loops: int) -> Tensor:
        nonlocal read
        logits = model.readout(state, context, loop, loops)
        read += logits.shape[:-1].numel()
        return logits

    _run(replace(model, step=step, readout=readout), tokens, loops)
    return steps, read


def _depths(
    place: int, work: Sequence[tuple[int, int]], losses: Sequence[float], rounds: Sequence[_Seconds], tokens: int
) -> tuple[DepthSpeed, ...]:
    deepest = len(losses)
    return tuple(
        DepthSpeed(
            loops=steps,
            head_products=read,
            loss=loss,
            tokens_per_second=tokens / statistics.median(seconds[place, k] for seconds in rounds),
            speedup=statistics.median(seconds[place, deepest] / seconds[place, k] for seconds in rounds),
            against_first=statistics.median(seconds[0, k] / seconds[place, k] for seconds in rounds),
        )
        for k, ((steps, read), loss) in enumerate(zip(work, losses, strict=True), start=1)
    )
