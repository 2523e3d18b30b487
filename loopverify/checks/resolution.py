"""How finely a step computes: whether its states hold the digits of float32, or were rounded to fewer on the way.

A cast that is written in the step is in every copy of it, so that a copy in float64 shows nothing. But a step that
rounds is a staircase: three states in a row, so close together that no curvature shows, do not map to three in a row.
What is left of F(x - d) - 2 F(x) + F(x + d) is a few roundings of float32, or the steps of the stairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.checks.subject import SAFETY, Subject, exactly, pin, rounding

__all__ = ["Resolution", "resolutions"]

NUDGES = (2.0**-11, 2.0**-13, 2.0**-15)
"""Lengths of d, relative. A curvature shows by their squares, 2^-22 to 2^-30 beside the 2^-23 of float32; a routing
decision may flip under one of them. What is coarse by all three is coarse."""
ASIDE = 2.0**-4
"""How far x lies beside a state of the run, relative: several steps of bfloat16, since a state that was rounded before
lies in the middle of a stair, where small distances show nothing; and so far, the slope of stairs is that of a ramp."""


@dataclass(frozen=True)
class Resolution:
    """What a second difference leaves of one step."""

    loop: int
    scale: float
    """rms of the states that the step was tried on."""
    error: float
    """rms of the second difference, relative to the rms of the step's result."""
    limit: float
    """What rounding in float32 explains of it; a float64 model may compute parts in float32."""


def resolutions(subject: Subject) -> Iterator[Resolution]:
    """Every step of the subject's run, at the scale of its states and at rms 1: beside a large carried scale, the
    rounding of a branch does not show in the sum."""
    trace = subject.trace
    for k in range(1, trace.loops + 1):
        state = trace.states[k - 1]
        own = _rms(state)
        for scale in (own, 1.0):
            at_scale = state * (scale / own) if own > 0 else subject.normal(state)
            yield _resolution(subject, at_scale, scale, k)


def _resolution(subject: Subject, state: Tensor, scale: float, loop: int) -> Resolution:
    x = state + ASIDE * _noise(subject, state)
    there = _stepped(subject, x, loop)
    # A step may respond to its input, and so to a rounding inside of it, by more than one to one.
    gain = _relative(there - _stepped(subject, state, loop), there) / ASIDE
    limit = SAFETY * rounding(torch.float32, subject.width) * max(gain, 1.0)
    error = float("inf")
    for nudge in NUDGES:
        d = nudge * _noise(subject, state)
        bent = _stepped(subject, x - d, loop) - 2 * there + _stepped(subject, x + d, loop)
        error = min(error, _relative(bent, there))
        if error <= limit:
            break
    return Resolution(loop, scale, error, limit)


def _noise(subject: Subject, state: Tensor) -> Tensor:
    """A random direction of the size of the state, or of 1 where that is zero."""
    return (_rms(state) or 1.0) * subject.normal(state)


def _stepped(subject: Subject, state: Tensor, loop: int) -> Tensor:
    pin()
    with torch.no_grad():
        return exactly(subject.model.step(state, subject.trace.context, loop))


def _rms(tensor: Tensor) -> float:
    return float(exactly(tensor).square().mean().sqrt())


def _relative(change: Tensor, result: Tensor) -> float:
    return _rms(change) / (_rms(result) or 1.0)
