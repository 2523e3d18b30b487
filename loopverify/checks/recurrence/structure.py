"""The place where a state is taken: after the residual sum, and before any norm that is not fed back."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from loopverify.checks.calls import recorded
from loopverify.checks.check import check
from loopverify.checks.result import Finding, at_most, none
from loopverify.checks.subject import Subject, gap, pin, rms
from loopverify.looped import Trace

__all__ = ["residual_identity", "states_before_norm"]

MANY_LOOPS = 16
"""A norm after the last trained loop is searched for up to this many trained loops."""
ONE_RMS = 0.01
"""If the rms of a state's tokens varies by less than this fraction of its variation by chance (see `_spread`), the
state is normalized; a norm with epsilon 1e-6 achieves this for inputs of rms 0.01 or more."""
MANY_RMS = 0.1
"""If it varies by more than this fraction, the state is not normalized; between the two, it is undecided."""


@check(needs=("branches",))
def residual_identity(subject: Subject) -> Iterator[Finding]:
    """Residual branches that do not sum to the step: captured on the wrong side of a norm, or not all of them."""
    trace, branches = subject.trace, subject.model.branches
    assert branches is not None
    with torch.no_grad():
        for k in range(1, trace.loops + 1):
            outputs = branches(trace.states[k - 1], trace.context, k)
            total = trace.states[k - 1] + torch.stack([added for _, added in outputs]).sum(0)
            yield at_most(
                gap(total, trace.states[k]),
                subject.rounding * (1 + len(outputs)),
                fault=f"H_{k} is not H_{k - 1} plus the branches {', '.join(name for name, _ in outputs)}",
                cause="a branch is captured before the norm that follows it (sandwich norm), a sublayer is "
                "missing, or the step does more than add",
                remedy="return what each sublayer adds to the stream, or branches=None if the step is no such sum",
                note=f"H_k is H_(k-1) plus {len(outputs)} branches at every loop",
            )


@check()
def states_before_norm(subject: Subject) -> Finding:
    """States taken after a norm that is not fed back: only the last one is normalized, or all are while the step
    continues from a raw state kept elsewhere."""
    r0 = subject.model.trained_loops
    trace = subject.unroll(loops=max(subject.loops, r0 + 1 if r0 <= MANY_LOOPS else 0))
    last = r0 if r0 <= trace.loops else trace.loops
    spreads = [_spread(state) for state in trace.states[1:]]
    from_norm = [_from_a_norm(trace, k) for k in range(1, trace.loops + 1)]
    before = slice(0, last - 1)
    only_the_last = last > 1 and spreads[last - 1] < ONE_RMS and min(spreads[before]) > MANY_RMS
    odd = only_the_last or (last > 1 and from_norm[last - 1] and not any(from_norm[before]))
    last_alone = none(
        odd,
        "odd states",
        fault=f"H_{last} is normalized (one rms for all tokens), and the states before it are not",
        cause="the last state that the model returns includes the readout norm, as in hidden_states[-1]",
        remedy="take every state before the readout norm; the readout applies it",
        note="the last state is taken at the same place as the others",
    )
    if odd or not (all(from_norm) or max(spreads) < ONE_RMS):
        return last_alone
    off = max(gap(_stepped_alone(subject, trace, k), trace.states[k]) for k in range(2, trace.loops + 1))
    return at_most(
        off,
        subject.state_limit,
        fault="the states are normalized, and a step from one of them does not give the next: they are not fed back",
        cause="the model continues from a raw state and returns normalized ones",
        remedy="return the state that is fed back, before the readout norm",
        note="every state is normalized and fed back as such: the loop boundary removes scale",
    )


def _spread(state: Tensor) -> float:
    """Relative standard deviation of the rms over tokens, in units of that of independent channels, 1/sqrt(2 D)."""
    sizes = rms(state)
    return float(sizes.std() / sizes.mean()) * math.sqrt(2 * state.shape[-1])


def _from_a_norm(trace: Trace, loop: int) -> bool:
    """Whether a module that the readout applies to H_loop returned this very state during the step."""
    with torch.no_grad():
        with recorded() as reading:
            trace.logits(loop)
        readers = {call.module for call in reading if torch.equal(call.given, trace.states[loop])}
        with recorded() as stepping:
            trace.model.step(trace.states[loop - 1], trace.context, loop)
    return any(torch.equal(call.result, trace.states[loop]) for call in stepping if call.module in readers)


def _stepped_alone(subject: Subject, trace: Trace, loop: int) -> Tensor:
    """H_loop from H_(loop-1) in a new context, which no other step has used."""
    pin()
    with torch.no_grad():
        _, context = subject.model.embed(subject.tokens)
        return subject.model.step(trace.states[loop - 1], context, loop)
