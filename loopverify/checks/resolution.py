"""How finely a step computes: does it keep the digits of float32, or round its state to fewer on the way?

A cast hidden inside a step cannot be found by comparing with a float64 copy of the model: the copy casts as well. But
it shows in the step F as a function. A smooth F is nearly linear over a short distance d, so the second difference
F(x - d) - 2 F(x) + F(x + d) is of order |d|^2, plus a few roundings in the dtype in which F computes. A cast makes F a
staircase, and the second difference of a staircase is of the order of its steps: 2^-7 relative in bfloat16, 2^-10 in
float16, against 2^-23 in float32. The choice of x and d is what makes the difference visible:

- d must be so short that the curvature of F is below the roundings of float32, and is therefore tried at three lengths;
- x must not be a state of the run. If the step before rounded its result, such a state lies exactly at the center of a
  stair, and x - d, x, x + d all fall on this stair: the second difference is 0. So x is moved away by several stairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.checks.subject import SAFETY, Subject, exactly, pin, rounding

__all__ = ["Resolution", "resolutions"]

NUDGES = (2.0**-11, 2.0**-13, 2.0**-15)
"""Relative lengths of d. Curvature contributes their squares, 2^-22 to 2^-30, compared with 2^-23 of float32. The
smallest of the three results is used: strong curvature, or a router's decision that flips, need not affect all of them,
while rounding does."""
OFFSET = 2.0**-4
"""Relative distance of x from a state of the run: several steps of bfloat16 (2^-7). Over this distance the mean slope
of a staircase equals that of the smooth function, so it also measures the gain of the step."""


@dataclass(frozen=True)
class Resolution:
    """The second difference of one step, and its limit."""

    loop: int
    scale: float
    """rms of the states at which the step was evaluated."""
    error: float
    """rms of the second difference, relative to the rms of the step's result."""
    limit: float
    """The part that rounding in float32 explains; a float64 model may compute parts in float32."""


def resolutions(subject: Subject) -> Iterator[Resolution]:
    """The resolution of every step of the subject's run, at the scale of its states and at rms 1. Only the latter shows
    the rounding of a branch whose output is small relative to a large carried state."""
    trace = subject.trace
    for k in range(1, trace.loops + 1):
        state = trace.states[k - 1]
        own = _rms(state)
        for scale in (own, 1.0):
            at_scale = state * (scale / own) if own > 0 else subject.normal(state)
            yield _resolution(subject, at_scale, scale, k)


def _resolution(subject: Subject, state: Tensor, scale: float, loop: int) -> Resolution:
    x = state + OFFSET * _noise(subject, state)
    center = _stepped(subject, x, loop)
    # A step that amplifies changes of its input also amplifies its first roundings: the limit grows with its gain.
    gain = _relative(center - _stepped(subject, state, loop), center) / OFFSET
    limit = SAFETY * rounding(torch.float32, subject.width) * max(gain, 1.0)
    error = float("inf")
    for nudge in NUDGES:
        d = nudge * _noise(subject, state)
        second_difference = _stepped(subject, x - d, loop) - 2 * center + _stepped(subject, x + d, loop)
        error = min(error, _relative(second_difference, center))
        if error <= limit:
            break
    return Resolution(loop, scale, error, limit)


def _noise(subject: Subject, state: Tensor) -> Tensor:
    """A random direction with the rms of the state, or with rms 1 if the state is zero."""
    return (_rms(state) or 1.0) * subject.normal(state)


def _stepped(subject: Subject, state: Tensor, loop: int) -> Tensor:
    pin()
    with torch.no_grad():
        return exactly(subject.model.step(state, subject.trace.context, loop))


def _rms(tensor: Tensor) -> float:
    return float(exactly(tensor).square().mean().sqrt())


def _relative(change: Tensor, result: Tensor) -> float:
    return _rms(change) / (_rms(result) or 1.0)
