"""The measurements of a trained run, in addition to its training metrics, as metrics that claims read.

A measurement is a function from a `Subject` to metrics by name. Which metrics it returns is listed in one place,
`loopverify.claims.metrics` (as their source), and checked by `train.study.measure`. Numbers of sequences are the
paper's where it states them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from loopverify.halting.calibration import halting
from loopverify.looped import Trace
from loopverify.measures.clamp import clamp_effect
from loopverify.measures.decomposition import PAPER_LOOPS, decompose
from loopverify.measures.held_out import over_batches
from loopverify.measures.radial import radial_summary
from loopverify.measures.scale_sweep import ScaleSweep, scale_sweep
from loopverify.measures.throughput import throughput
from loopverify.measures.variable_depth import variable_depth
from loopverify.theory.polar import at_least_float32
from train.study.subject import Subject

__all__ = ["MEASUREMENTS"]

SEQUENCES = 160
"""Held-out sequences per measurement: 20 batches of 8 in Table 4, 160 and another 160 in Table 13."""
TIMED_ROUNDS = 25


def _depth(subject: Subject) -> dict[str, float]:
    """Cross-entropy (nats per token) of runs of 1..2K loops, on the windows of the training metrics."""
    found = variable_depth(subject.model, subject.batches(subject.spec.preset.eval_windows))
    return {f"ce_run@{point.loops}": point.loss for point in found.runs}


def _norms(subject: Subject) -> dict[str, float]:
    """The standard deviation of ||H_k|| over tokens, which is no training metric (Table 10)."""

    def measure(trace: Trace, targets: Tensor) -> list[Tensor]:
        return [at_least_float32(state).norm(dim=-1).flatten() for state in trace.states]

    _, rows = over_batches(subject.model, subject.batches(subject.spec.preset.eval_windows), None, measure)
    norms = [torch.cat(of_batches) for of_batches in zip(*rows, strict=True)]
    return {f"norm_std@{k}": float(of_loop.std(correction=0)) for k, of_loop in enumerate(norms)}


def _radial(subject: Subject) -> dict[str, float]:
    """Table 3, exit by exit, relative to the float32 rounding floor, at which a scale-invariant readout remains."""
    metrics: dict[str, float] = {}
    for k, exit_ in enumerate(radial_summary(subject.model, subject.batches(SEQUENCES)).exits, start=1):
        fraction = math.nan if exit_.fraction is None else exit_.fraction
        metrics |= {f"r@{k}": fraction, f"r_over_floor@{k}": fraction / exit_.floor, f"g@{k}": exit_.signal}
    return metrics


def _clamp(subject: Subject) -> dict[str, float]:
    """Table 4: later loops held at the norm of the first."""
    effect = clamp_effect(subject.model, subject.batches(SEQUENCES))
    return {
        "clamp_norm_ratio": effect.norm_ratio,
        "clamp_delta_ce": effect.loss_change,
        "clamp_abs_delta_ce": abs(effect.loss_change),
    }


def _sweep(subject: Subject) -> dict[str, float]:
    """Figures 5 and 6 and Table 6; 'bare' is the same model decoded without its readout norm."""
    module, batches = subject.module, subject.batches(SEQUENCES)
    metrics = _swept("sweep", scale_sweep(subject.model, batches))
    if module.readout_norm is not None:
        bare = replace(subject.model, readout=lambda state, context, loop, loops: module.head(state))
        metrics |= _swept("bare_sweep", scale_sweep(bare, batches))
    return metrics


def _swept(name: str, sweep: ScaleSweep) -> dict[str, float]:
    metrics = {f"{name}_span": sweep.loss_span}
    for point in sweep.points:
        at = f"{point.alpha:.3g}"
        metrics |= {f"{name}_ce@{at}": point.loss, f"{name}_entropy@{at}": point.entropy}
        metrics |= {f"{name}_margin@{at}": point.margin}
    return metrics


def _decomposition(subject: Subject) -> dict[str, float]:
    """Table 12 ('late': the mean over loops from the tenth on) and Figure 3 (loop by loop)."""
    found = decompose(subject.model, subject.batches(SEQUENCES), PAPER_LOOPS)
    metrics = {
        "a_rad@late": found.a_rad,
        "b_perp@late": found.b_perp,
        "b@late": found.b_rms,
        "b_over_a@late": found.ratio,
        "growth@late": found.growth,
        "growth_gap@late": found.growth_gap,
    }
    if found.angular_slope is not None:
        metrics |= {"step_slope@late": found.angular_slope, "step_slope_gap@late": abs(found.angular_slope - 1)}
    for loop in found.loops:
        k, update = loop.loop, loop.update
        metrics |= {f"a_rad@{k}": update.a_rad, f"b_perp@{k}": update.b_perp, f"b@{k}": update.b_rms}
        metrics |= {f"growth@{k}": update.growth, f"angular_step@{k}": update.angular_step}
    return metrics


def _halting(subject: Subject) -> dict[str, float]:
    """Table 13: thresholds fit on every second sequence, evaluated on the others; the speed-up is ideal, K / loops."""
    batches = subject.batches(2 * SEQUENCES)
    fit, judged = ([(tokens[half::2], targets[half::2]) for tokens, targets in batches] for half in (0, 1))
    run = halting(subject.model, fit, judged).evaluation
    return {
        "halting_loops": run.average_loops,
        "halting_ppl": run.dynamic_perplexity,
        "halting_fixed_ppl": run.fixed_perplexity,
        "halting_ppl_ratio": run.dynamic_perplexity / run.fixed_perplexity,
        "halting_speedup": run.ideal_speedup,
    }


def _timing(subject: Subject) -> dict[str, float]:
    """Table 8 and Figure 4: tokens per second, interleaved with those of the same model with an RMSNorm readout."""
    spec = replace(subject.spec, readout="rmsnorm")
    plain = spec.model(subject.examples.vocab_size).to(spec.device)  # random weights: speed does not depend on them
    device = torch.device(spec.device).type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):  # the precision of training
        batch = subject.batches(spec.preset.batch)
        rmsnorm, own = throughput([plain.looped("rmsnorm"), subject.model], batch, repeats=TIMED_ROUNDS)
    metrics = {f"timing_rmsnorm_tokens_per_s@{depth.loops}": depth.tokens_per_second for depth in rmsnorm.depths}
    for depth in own.depths:
        metrics |= {f"timing_tokens_per_s@{depth.loops}": depth.tokens_per_second}
        metrics |= {f"timing_vs_rmsnorm@{depth.loops}": depth.against_first}
        metrics |= {f"timing_speedup@{depth.loops}": depth.speedup}
    return metrics


MEASUREMENTS: Mapping[str, Callable[[Subject], dict[str, float]]] = MappingProxyType(
    {
        "depth": _depth,
        "norms": _norms,
        "radial": _radial,
        "clamp": _clamp,
        "sweep": _sweep,
        "decomposition": _decomposition,
        "halting": _halting,
        "timing": _timing,
    }
)
"""Measurements by name, the `source` of their metrics in `loopverify.claims.metrics`."""
