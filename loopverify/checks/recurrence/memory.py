"""A step remembers and overwrites nothing: its only effect is the state that it returns."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from loopverify.checks.check import check
from loopverify.checks.preserving import same, tensors_of
from loopverify.checks.recurrence.trajectory import state_dtype
from loopverify.checks.result import Finding, NotApplicableError, at_most, none
from loopverify.checks.subject import Subject, gap, pin

__all__ = ["model_unchanged", "resume", "state_memory", "step_memory"]


@check(presupposes=(state_dtype,))
def state_memory(subject: Subject) -> Iterator[Finding]:
    """A step or readout that overwrites a state of the trajectory, also through `.data` or a reused buffer, which
    version counters miss."""
    model = subject.model
    states: list[Tensor] = []
    copies: list[Tensor] = []

    def unchanged(culprit: str) -> Finding:
        changed = [k for k, (s, c) in enumerate(zip(states, copies, strict=True)) if not same(s, c)]
        named = ", ".join(f"H_{k}" for k in changed)
        return none(
            len(changed),
            "states",
            fault=f"{culprit} changed {named} in place",
            cause="h += b, a write through .data, or one output buffer for all loops",
            remedy="write the result to new memory (h = h + b): earlier states are still decoded",
            note="no state changes after it was computed",
        )

    with torch.no_grad():
        pin()
        state, context = model.embed(subject.tokens)
        for k in range(1, subject.loops + 1):
            states.append(state)
            copies.append(state.clone())
            state = model.step(state, context, k)
            yield unchanged(f"step at loop {k}")
        for k in range(1, subject.loops):
            model.readout(states[k], context, k, subject.loops)
            yield unchanged(f"readout of exit {k}")


@check(explained_by=("context_memory", "sampled_depth"))
def step_memory(subject: Subject) -> Iterator[Finding]:
    """A step that remembers an earlier call: a residual carried over from the previous loop, a counter, a buffer."""
    trace = subject.trace
    with torch.no_grad():
        for k in range(trace.loops, 0, -1):
            again = subject.model.step(trace.states[k - 1], trace.context, k)
            yield at_most(
                gap(again, trace.states[k]),
                subject.state_limit,
                fault=f"step at loop {k}, called again with the same H_{k - 1}, returns a different H_{k}",
                cause="something of the previous call is kept outside the state "
                "(a residual kept in an attribute, a cache in the context)",
                remedy="keep everything that the next loop needs in the state, and nothing elsewhere",
                note="repeated calls of step return the same state",
            )


@check(decides="context_memory", explained_by=("random_state", "sampled_depth"))
def resume(subject: Subject) -> Iterator[Finding]:
    """A run that cannot be resumed: a loops and then b more from H_a in a new context differ from a + b loops at
    once."""
    trace = subject.trace
    if trace.loops < 2:
        raise NotApplicableError("the model runs one loop; resuming requires two")
    for a in range(1, trace.loops):
        pin()
        with torch.no_grad():
            _, context = subject.model.embed(subject.tokens)
            state = trace.states[a]
            for k in range(a + 1, trace.loops + 1):
                state = subject.model.step(state, context, k)
        yield at_most(
            gap(state, trace.states[-1]),
            subject.state_limit,
            fault=f"H_{a} resumed for {trace.loops - a} more loops is not H_{trace.loops} of an unbroken run",
            cause="the steps keep something in the context or the model (keys of earlier loops, a raw state "
            "of which only the normalized one is returned)",
            remedy="return the state that is fed back, before any norm that is not, and keep the context constant",
            note=f"every split of {trace.loops} loops gives the same final state",
        )


@check()
def model_unchanged(subject: Subject) -> Finding:
    """A forward in eval mode that changes a parameter or a buffer (running statistics, a stored cache)."""
    model = subject.model
    before = [(name, tensor, tensor.detach().clone()) for name, tensor in tensors_of(model)]
    if not before:
        raise NotApplicableError("no parameters or buffers found; name the module that owns them in Looped(module=...)")
    trace = subject.unroll()
    with torch.no_grad():
        for k in range(1, trace.loops + 1):
            trace.logits(k)
        for path in model.paths.values():
            path(subject.tokens, subject.loops)
        if model.decode is not None:
            model.decode(subject.tokens, None, subject.loops)
    changed = [name for name, tensor, copy in before if not same(tensor, copy)]
    return none(
        len(changed),
        "tensors",
        fault=f"a forward in eval mode changed {', '.join(changed[:5])}",
        cause="a running statistic, a counter or a cache is kept in a buffer and updated in eval mode as well",
        remedy="update buffers only when self.training, and keep caches in the context",
        note=f"{len(before)} parameters and buffers are unchanged",
    )
