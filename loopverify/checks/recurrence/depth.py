"""The use of loops, on random tokens: exits differ, and runs of more loops than trained stay finite."""

from __future__ import annotations

import math

from loopverify.auditing import depth
from loopverify.checks.check import check
from loopverify.checks.readout.readouts import logits_form
from loopverify.checks.result import Finding, at_least, none
from loopverify.checks.subject import Subject, exactly, gap
from loopverify.looped import Trace

__all__ = ["depth_use", "overshoot"]

RATIO, MOST_LOOPS = 4, 64
"""Runs are tried up to this ratio of trained loops, and up to this many loops."""
LEAST_RATIO = 1.25
"""But at least up to this ratio, so that a model trained at `MOST_LOOPS` or more also runs beyond its trained loops."""
RATIOS = (0.5, 1, 1.5, 2, 3, 4)
"""Ratios K / r0 at which the curve is reported."""


@check(presupposes=(logits_form,))
def overshoot(subject: Subject) -> Finding:
    """Runs of more loops than trained whose states or logits silently overflow."""
    r0 = subject.model.trained_loops
    trace = subject.unroll(loops=max(min(RATIO * r0, MOST_LOOPS), math.ceil(LEAST_RATIO * r0)))
    points = depth.overshoot(trace, subject.others(trace.tokens))
    ruined = [point for point in points if not math.isfinite(point.loss)]
    curve = ", ".join(f"{point.loss:.3g} at {point.ratio:g}" for point in points if point.ratio in RATIOS)
    first = f" from K / r0 = {ruined[0].ratio:g} on" if ruined else ""
    return none(
        len(ruined),
        "runs",
        fault=f"the loss is not finite{first} (CE by K / r0 on random tokens: {curve})",
        cause="a recurrence that grows without bound, which is not apparent at the trained number of loops",
        remedy="bound the recurrence, reject more loops than trained, and compare models at equal K / r0",
        note=f"CE by K / r0 on random tokens: {curve}; KL from the trained exit at {trace.loops / r0:g}: "
        f"{_divergence(trace.first(r0), trace):.2g} nats",
    )


def _divergence(trained: Trace, longer: Trace) -> float:
    """Mean KL(p || q) over tokens, nats, of the last exit of the trained run (p) and of a longer run (q)."""
    p, q = (exactly(trace.logits(trace.loops)).log_softmax(-1) for trace in (trained, longer))
    return float((p.exp() * (p - q)).sum(-1).mean())


@check(presupposes=(logits_form,))
def depth_use(subject: Subject) -> Finding:
    """A last exit with the logits of the first one: the loops between them have no effect."""
    trace = subject.trace
    first, last = trace.logits(1), trace.logits(trace.loops)
    gain = depth.depth_use(trace, subject.others(trace.tokens)).gain
    return at_least(
        gap(last, first),
        subject.logits_limit,
        fault=f"exit {trace.loops} has the logits of exit 1: loops are executed and have no effect on the logits",
        cause="the readout decodes a state of the first loop, or the recurrence ends after one",
        remedy="decode the state of each loop, and report CE(1) - CE(r0) with any speed-up from halting early",
        note=f"exits differ; CE(1) - CE({trace.loops}) = {gain:.3g} nats on random tokens, where no gain is expected",
    )
