"""What loops buy, on random tokens: exits that differ, and more loops than trained that stay finite."""

from __future__ import annotations

import math

from loopverify.auditing import depth
from loopverify.checks.check import check
from loopverify.checks.readout.readouts import logits_form
from loopverify.checks.result import Finding, at_least, at_most
from loopverify.checks.subject import Subject, exactly, gap
from loopverify.looped import Trace

__all__ = ["depth_use", "overshoot"]

RATIO, MOST_LOOPS = 4, 64
"""More loops than trained are tried up to this ratio, and up to this many loops."""
RATIOS = (0.5, 1, 1.5, 2, 3, 4)
"""K / r0 at which the curve is reported."""


@check(presupposes=(logits_form,))
def overshoot(subject: Subject) -> Finding:
    """More loops than trained that silently ruin the output: states or logits overflow beyond r0."""
    r0 = subject.model.trained_loops
    trace = subject.unroll(loops=max(2, min(RATIO * r0, MOST_LOOPS)))
    points = depth.overshoot(trace, subject.others(trace.tokens))
    ruined = [point for point in points if not math.isfinite(point.loss)]
    curve = ", ".join(f"{point.loss:.3g} at {point.ratio:g}" for point in points if point.ratio in RATIOS)
    first = f" from K / r0 = {ruined[0].ratio:g} on" if ruined else ""
    return at_most(
        float(len(ruined)),
        0,
        "runs",
        fault=f"the loss is not finite{first} (CE by K / r0 on random tokens: {curve})",
        cause="a recurrence that grows without bound, which the trained number of loops does not show",
        remedy="bound the recurrence, refuse more loops than trained, and compare models at equal K / r0",
        note=f"CE by K / r0 on random tokens: {curve}; KL from the trained exit at {trace.loops / r0:g}: "
        f"{_divergence(trace.first(min(r0, trace.loops)), trace):.2g} nats",
    )


def _divergence(trained: Trace, longer: Trace) -> float:
    """Mean KL(p || q) over tokens, nats: how far the last exit of a longer run is from what the trained one says."""
    p, q = (exactly(trace.logits(trace.loops)).log_softmax(-1) for trace in (trained, longer))
    return float((p.exp() * (p - q)).sum(-1).mean())


@check(presupposes=(logits_form,))
def depth_use(subject: Subject) -> Finding:
    """A flat curve: the last exit shows what the first one shows, so that extra loops neither help nor hurt."""
    trace = subject.trace
    first, last = trace.logits(1), trace.logits(trace.loops)
    gain = depth.depth_use(trace, subject.others(trace.tokens)).gain
    return at_least(
        gap(last, first),
        subject.logits_limit,
        "relative",
        fault=f"exit {trace.loops} shows the logits of exit 1: loops are executed and change nothing that is shown",
        cause="the readout decodes a state of the first loop, or the recurrence ends after one",
        remedy="decode the state of each loop, and show CE(1) - CE(r0) beside any speed-up from halting early",
        note=f"exits differ; CE(1) - CE({trace.loops}) = {gain:.3g} nats on random tokens, where no gain is expected",
    )
