"""Learned exits: probabilities sum to one and thresholds select the right exit, also in half precision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from loopverify.checks.check import check
from loopverify.checks.result import Finding, NotApplicableError, at_most, none
from loopverify.checks.subject import Subject, exactly
from loopverify.looped import Trace

__all__ = ["exit_half_precision", "exit_probabilities", "exit_threshold", "never_exit_early"]

SCALES = (1.0, 10.0, 100.0)
"""Factors on the states: in training, norms drift by two orders of magnitude, and gate logits grow with them."""
THRESHOLDS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
LOOPS = 8
"""Enough exits for the rounding errors of a product over exits to accumulate."""


def _scaled(trace: Trace) -> Iterator[tuple[float, Trace]]:
    for scale in SCALES:
        yield scale, replace(trace, states=tuple(scale * state for state in trace.states))


def _gated(subject: Subject) -> Trace:
    return subject.unroll(loops=LOOPS)


def _probabilities(trace: Trace) -> Tensor:
    assert trace.model.exit_probabilities is not None
    with torch.no_grad():
        return trace.model.exit_probabilities(trace)


@check(needs=("exit_probabilities",))
def exit_probabilities(subject: Subject) -> Iterator[Finding]:
    """Exit probabilities that are not a distribution over the exits of each token: out of range, or a sum that is
    not 1."""
    dtype = torch.promote_types(subject.dtype, torch.float32)
    for scale, trace in _scaled(_gated(subject)):
        yield from _distribution(trace, torch.finfo(dtype).eps, f"with states times {scale:g}")


def _distribution(trace: Trace, eps: float, where: str) -> Iterator[Finding]:
    """The shape, range and sum of the exit probabilities; `eps` is the rounding unit of their dtype."""
    p = _probabilities(trace)
    expected = (*trace.tokens.shape, trace.loops)
    advice = {
        "cause": "the last exit does not take the rest, or the products are computed in half precision",
        "remedy": "give the last exit the rest, and compute gates and probabilities in float32",
    }
    yield none(
        tuple(p.shape) != expected,
        "wrong shapes",
        fault=f"exit probabilities of shape {tuple(p.shape)}, expected (B, T, K) = {expected}",
        cause="one probability per row, or a number of exits fixed by the configuration",
        remedy="return the probability of each token at each exit of the run",
    )
    # A product and a sum over the exits, two roundings each, in float32. In bfloat16, the sum over eight exits may be
    # off by 0.4 %, enough for a threshold near 1 to be reached early.
    limit = 4 * trace.loops * eps
    outside = max(float(-p.min()), float(p.max()) - 1, 0.0)
    yield at_most(outside, limit, "probability", fault=f"{where}, exit probabilities leave [0, 1]", **advice)
    off = float((exactly(p).sum(-1) - 1).abs().max())
    note = "the exit probabilities of every token sum to 1"
    yield at_most(off, limit, "probability", fault=f"{where}, exit probabilities do not sum to 1", **advice, note=note)


@check(needs=("exit_probabilities",), presupposes=(exit_probabilities,))
def exit_half_precision(subject: Subject) -> Iterator[Finding]:
    """Exit probabilities that do not sum to 1 once the model runs in bfloat16."""
    model, _ = subject.in_dtype(torch.bfloat16)
    trace = subject.unroll(loops=LOOPS, model=model)
    for scale, scaled in _scaled(trace):
        p = _probabilities(scaled)
        yield at_most(
            float((exactly(p).sum(-1) - 1).abs().max()),
            4 * LOOPS * torch.finfo(torch.float32).eps,  # that of float32 for every model, see `_distribution`
            "probability",
            fault=f"in bfloat16, with states times {scale:g}, exit probabilities do not sum to 1",
            cause="the gate, its products or their running sum are computed in bfloat16",
            remedy="compute gates and probabilities in float32 regardless of the dtype of the states",
            note="exit probabilities sum to 1 in bfloat16",
        )


def _choices(trace: Trace, threshold: float) -> Tensor:
    assert trace.model.choose_exit is not None
    with torch.no_grad():
        return trace.model.choose_exit(trace, threshold)


@check(needs=("choose_exit",))
def exit_threshold(subject: Subject) -> Finding:
    """A threshold whose exits are not loops of the run, or do not change monotonically with it."""
    trace = _gated(subject)
    chosen = [_choices(trace, threshold) for threshold in THRESHOLDS]
    expected = tuple(trace.tokens.shape)
    wrong = [
        c
        for c in chosen
        if c.dtype != torch.int64 or tuple(c.shape) != expected or int(c.min()) < 1 or int(c.max()) > trace.loops
    ]
    example = (wrong or chosen)[0]
    form = none(
        len(wrong),
        "thresholds",
        fault=f"chosen exits are {example.dtype} {tuple(example.shape)} in {int(example.min())}.."
        f"{int(example.max())}, expected int64 {expected} in 1..{trace.loops}",
        cause="exits counted from 0, or one exit for the whole row",
        remedy="return for each token the loop, 1..K, after which it exits",
    )
    if not form.held:
        return form
    steps = torch.stack([b - a for a, b in itertools.pairwise(chosen)])
    earlier, later = int((steps < 0).sum()), int((steps > 0).sum())
    # A higher threshold on a probability means later exits; one on a distance may mean earlier ones.
    reversed_ = earlier if trace.model.exit_probabilities is not None else min(earlier, later)
    return none(
        reversed_,
        "tokens",
        fault="a higher threshold makes tokens exit earlier",
        cause="the threshold is compared with the wrong quantity, or the running sum is not monotonic",
        remedy="exit at the first loop at which the running sum of probabilities reaches the threshold",
        note=f"exits change monotonically over {len(THRESHOLDS)} thresholds",
    )


@check(needs=("choose_exit", "exit_probabilities"))
def never_exit_early(subject: Subject) -> Iterator[Finding]:
    """A threshold of 1.0 at which tokens exit before the last loop, because rounded probabilities reach 1 early."""
    yield from _early(_gated(subject), str(subject.dtype))
    try:
        model, _ = subject.in_dtype(torch.bfloat16)
    except NotApplicableError:
        return
    yield from _early(subject.unroll(loops=LOOPS, model=model), "torch.bfloat16")


def _early(trace: Trace, dtype: str) -> Iterator[Finding]:
    for scale, scaled in _scaled(trace):
        share = float((_choices(scaled, 1.0) < trace.loops).float().mean())
        yield none(
            share,
            "of the tokens",
            fault=f"in {dtype}, with states times {scale:g}, a threshold of 1.0 exits early",
            cause="a strong gate rounds to 1, or the running sum of rounded probabilities reaches 1 before the end",
            remedy="compute the running sum in float32 and treat a threshold of 1 or more as 'never'",
            note="a threshold of 1.0 always waits for the last exit",
        )
