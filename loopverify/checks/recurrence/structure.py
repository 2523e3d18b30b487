"""Where a state is taken: after the residual sum, and before any norm that is not fed back."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from loopverify.checks.calls import recorded
from loopverify.checks.check import check
from loopverify.checks.result import Finding, at_most, first_failing
from loopverify.checks.subject import Subject, gap, pin, rms
from loopverify.looped import Trace

__all__ = ["residual_identity", "states_before_norm"]

MANY_LOOPS = 16
"""A norm at the last trained loop is looked for up to this many loops."""
ONE_RMS = 0.01
"""States whose rms varies between tokens by less than a hundredth of chance (see `_spread`) are normalized: an epsilon
of 1e-6 leaves less than that from rms 0.01 on."""
MANY_RMS = 0.1
"""States whose rms varies by more than a tenth of chance are not; between the two, nothing is said."""


@check(needs=("branches",))
def residual_identity(subject: Subject) -> Finding:
    """Residual branches that do not sum to the step: captured on the wrong side of a norm, or not all of them."""
    trace, branches = subject.trace, subject.model.branches
    assert branches is not None

    def findings() -> Iterator[Finding]:
        with torch.no_grad():
            for k in range(1, trace.loops + 1):
                outputs = branches(trace.states[k - 1], trace.context, k)
                total = trace.states[k - 1] + torch.stack([added for _, added in outputs]).sum(0)
                yield at_most(
                    gap(total, trace.states[k]),
                    subject.rounding * (1 + len(outputs)),
                    "relative",
                    fault=f"H_{k} is not H_{k - 1} plus the branches {', '.join(name for name, _ in outputs)}",
                    cause="a branch is captured before the norm that follows it (sandwich norm), a sublayer is "
                    "missing, or the step does more than add",
                    remedy="return what each sublayer adds to the stream, or branches=None if the step is no such sum",
                    note=f"H_k is H_(k-1) plus {len(outputs)} branches at every loop",
                )

    return first_failing(findings())


@check()
def states_before_norm(subject: Subject) -> Finding:
    """States taken after a norm that the recurrence does not feed back: only the last one is normalized, or all are
    while the step goes on from a raw state kept elsewhere."""
    r0 = subject.model.trained_loops
    trace = subject.unroll(loops=max(subject.loops, r0 + 1 if r0 <= MANY_LOOPS else 0))
    last = r0 if r0 <= trace.loops else trace.loops
    spreads = [_spread(state) for state in trace.states[1:]]
    handed = [_from_a_norm(trace, k) for k in range(1, trace.loops + 1)]
    before = slice(0, last - 1)
    suddenly = last > 1 and spreads[last - 1] < ONE_RMS and min(spreads[before]) > MANY_RMS
    odd = suddenly or (last > 1 and handed[last - 1] and not any(handed[before]))
    partly = at_most(
        float(odd),
        0,
        "odd states",
        fault=f"H_{last} is normalized (one rms for all tokens), and the states before it are not",
        cause="the readout norm is part of the last state that the model hands out, as in hidden_states[-1]",
        remedy="take every state before the readout norm; the readout applies it",
        note="no last state alone is normalized",
    )
    if odd or not (all(handed) or max(spreads) < ONE_RMS):
        return partly
    off = max(gap(_stepped_alone(subject, trace, k), trace.states[k]) for k in range(2, trace.loops + 1))
    return at_most(
        off,
        subject.state_limit,
        "relative",
        fault="the states are normalized, and a step from one of them is not the next: they are not what is fed back",
        cause="the model keeps a raw state to go on from and hands out normalized ones",
        remedy="hand out the state that is fed back, before the readout norm",
        note="every state is normalized and fed back as such: the loop boundary removes scale",
    )


def _spread(state: Tensor) -> float:
    """Standard deviation of the rms over tokens, relative, in units of what independent channels give: 1/sqrt(2 D)."""
    sizes = rms(state)
    return float(sizes.std() / sizes.mean()) * math.sqrt(2 * state.shape[-1])


def _from_a_norm(trace: Trace, loop: int) -> bool:
    """Whether a module that the readout applies to H_loop had returned this very state during the step."""
    with torch.no_grad():
        with recorded() as reading:
            trace.logits(loop)
        readers = {call.module for call in reading if torch.equal(call.given, trace.states[loop])}
        with recorded() as stepping:
            trace.model.step(trace.states[loop - 1], trace.context, loop)
    return any(torch.equal(call.result, trace.states[loop]) for call in stepping if call.module in readers)


def _stepped_alone(subject: Subject, trace: Trace, loop: int) -> Tensor:
    """H_loop from H_(loop-1) in a context that no other step has seen."""
    pin()
    with torch.no_grad():
        _, context = subject.model.embed(subject.tokens)
        return subject.model.step(trace.states[loop - 1], context, loop)
