"""The states H_0..H_K: K steps give K states in order, each computed from the one before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from loopverify.checks.calls import counted
from loopverify.checks.check import check
from loopverify.checks.resolution import Resolution, resolutions
from loopverify.checks.result import (
    Finding,
    NotApplicableError,
    UnsoundRunError,
    at_least,
    at_most,
    first_failing,
    none,
)
from loopverify.checks.subject import SAFETY, Subject, gap, rms

__all__ = ["loops_executed", "state_dtype", "step_reads_state", "trajectory_order"]

MANY_LOOPS = 16
"""A cap on the loop count is searched for up to this many trained loops."""


@check()
def trajectory_order(subject: Subject) -> Iterator[Finding]:
    """A run of K loops that does not give K different states in order: only the last state is exposed, or a longer run
    does not begin with the shorter one."""
    try:
        longest = subject.unroll(loops=subject.loops + 1)
    except UnsoundRunError as error:
        if error.check != "trajectory_order":
            raise
        yield Finding(held=False, message=f"{error}. {_OVERFLOW_ADVICE}")
        return
    for k in range(1, longest.loops + 1):
        same = torch.equal(longest.states[k], longest.states[k - 1])
        yield none(
            same,
            "equal neighbors",
            fault=f"H_{k - 1} and H_{k} are the same state, bit by bit",
            cause="only the last state is exposed, or the step does nothing beyond some loop",
            remedy="let step return the state after one more loop, before any readout norm",
        )
    for loops in range(1, subject.loops + 1):
        shorter = subject.unroll(loops=loops)
        for k, state in enumerate(shorter.states):
            yield at_most(
                gap(state, longest.states[k]),
                subject.state_limit,
                fault=f"H_{k} of a run of {loops} loops is not H_{k} of a run of {longest.loops}",
                cause="the model remembers an earlier run, or the step depends on the length of the run",
                remedy="make step a function of (state, context, loop) alone",
                note="a longer run begins with the shorter one, and every loop gives a different state",
            )


_OVERFLOW_ADVICE = (
    "Likely cause: a division by zero, a logarithm or root of a negative number, or an overflow in embed or step. "
    "Remedy: find the first operation whose result is not finite, and add the missing epsilon or clamp."
)


@check()
def step_reads_state(subject: Subject) -> Finding:
    """A step that ignores the state it is given: a recorded trajectory is replayed instead of computed."""
    trace = subject.trace
    changes = []
    with torch.no_grad():
        for k in range(1, trace.loops + 1):
            state = trace.states[k - 1]
            shifted = state + subject.normal(state) * rms(state).mean().clamp_min(1e-3).to(state)
            changes.append(gap(subject.model.step(shifted, trace.context, k), trace.states[k]))
    weakest = changes.index(min(changes)) + 1
    return at_least(
        min(changes),
        subject.state_limit,
        fault=f"a different H_{weakest - 1} of the same size gives the same H_{weakest}",
        cause="the states were recorded in one forward and are returned one by one, perhaps in another order",
        remedy="let step compute the next state from the one it is given",
        note="the next state depends on the one before at every loop",
    )


@check(explained_by=("truncated_gradient",))
def state_dtype(subject: Subject) -> Finding:
    """A state that changes its dtype or device during the run, so that early and late loops round differently.

    This includes casts inside a step: a float32 state that was rounded to bfloat16 and cast back has only the digits of
    bfloat16 (see `checks.resolution`).
    """
    try:
        named = f"all states are {subject.trace.states[0].dtype}"
    except UnsoundRunError as error:
        if error.check != "state_dtype":
            raise
        return Finding(held=False, message=f"{error}. {_CAST_ADVICE}")
    if subject.dtype in (torch.bfloat16, torch.float16):
        return Finding(held=True, message=f"{named}; no coarser rounding is searched for")
    if not _repeats_its_steps(subject):
        return Finding(
            held=True,
            message=f"{named}; their precision is not measured, since a repeated step differs",
        )
    return first_failing(_fineness(subject, found) for found in resolutions(subject))


_CAST_ADVICE = (
    "Likely cause: a norm or a residual branch casts and does not cast back. "
    "Remedy: return the state from step in the dtype and on the device in which it came."
)


def _repeats_its_steps(subject: Subject) -> bool:
    """Whether repeated steps give the same states; if not, check step_memory reports it."""
    trace = subject.trace
    with torch.no_grad():
        again = [subject.model.step(trace.states[k - 1], trace.context, k) for k in range(trace.loops, 0, -1)]
    return all(gap(a, b) <= SAFETY * subject.rounding for a, b in zip(reversed(again), trace.states[1:], strict=True))


def _fineness(subject: Subject, found: Resolution) -> Finding:
    return at_most(
        found.error,
        found.limit,
        fault=f"the states are {subject.dtype} and step at loop {found.loop} computes coarser than float32: at rms "
        f"{found.scale:.3g}, equidistant states are not mapped to equidistant states",
        cause="the state or a branch is rounded inside step and cast back (a stray .bfloat16() or .half(), autocast), "
        "or digits are lost to a larger number that is added and subtracted again",
        remedy="keep the residual stream and what is added to it in the dtype of the states",
        note=f"all states are {subject.dtype} and computed as finely as float32",
    )


@check(decides="uneven_loops")
def loops_executed(subject: Subject) -> Finding:
    """A loop that does not run the block: of K loops fewer (or more) are executed, by the number of module calls."""
    calls: list[Counter[nn.Module]] = []

    def step(state: Tensor, context: Any, loop: int) -> Tensor:
        with counted() as counts:
            following = subject.model.step(state, context, loop)
        calls.append(counts)
        return following

    beyond = subject.model.trained_loops + 1 if subject.model.trained_loops < MANY_LOOPS else 0
    loops = max(subject.loops, beyond)
    subject.unroll(loops=loops, model=replace(subject.model, step=step))
    if not any(calls):
        raise NotApplicableError("no nn.Module is called inside step, so executed loops cannot be counted")
    usual = Counter(map(_total, calls)).most_common(1)[0][0]
    odd = [k for k, counts in enumerate(calls, start=1) if _total(counts) != usual]
    what = f"loop {odd[0]} calls {_total(calls[odd[0] - 1])} modules, most loops {usual}" if odd else ""
    return none(
        len(odd),
        "odd loops",
        fault=f"not all of {loops} loops run the same block: {what}",
        cause="the number of loops is capped by the configuration, or a loop is skipped or run twice",
        remedy="run the whole block once per call of step, at every loop",
        note=f"each of {loops} loops makes {usual} module calls",
    )


def _total(counts: Counter[nn.Module]) -> int:
    return sum(counts.values())
