"""Numbers that a model's own code reports, compared with their definitions: units that differ by sqrt(d) or d."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from loopverify.checks.check import check
from loopverify.checks.result import Finding, NotApplicableError, at_least, at_most
from loopverify.checks.subject import Subject, exactly
from loopverify.checks.substitute import trainable, with_tensors
from loopverify.errors import unknown
from loopverify.looped import Trace
from loopverify.objectives.terms import norm_penalty

__all__ = ["QUANTITIES", "penalty_gradient", "units"]

SCALE, RADIAL = 3.0, 2.0
"""rms of the test state, and the radial activity a_rad of the test update."""
QUANTITIES: Mapping[str, Callable[[int], float]] = {
    "rms": lambda d: SCALE,
    "l2": lambda d: SCALE * math.sqrt(d),
    "mean_square": lambda d: SCALE**2,
    "a_rad": lambda d: RADIAL,
}
"""The correct report for a state whose d channels are all SCALE, and an update whose channels are all RADIAL."""


@check(needs=("reports",))
def units(subject: Subject) -> Iterator[Finding]:
    """A reported number in a unit other than its name says: d * a_rad for a_rad, an L2 norm for an rms."""
    d = subject.width
    state = torch.full((1, 2, d), SCALE, dtype=subject.dtype, device=subject.device)
    update = torch.full_like(state, RADIAL)
    for name, report in subject.model.reports.items():
        if name not in QUANTITIES:
            raise unknown("reported quantity", name, QUANTITIES)
        value = report(state, update) if name == "a_rad" else report(state)
        expected = QUANTITIES[name](d)
        ratio = float(exactly(torch.as_tensor(value)).mean()) / expected
        yield at_most(
            abs(ratio - 1),
            subject.rounding,
            fault=f"the reported '{name}' is {ratio:.4g} times the definition{_unit(ratio, d)}",
            cause="a sum over channels where the definition has a mean, or a missing square root",
            remedy="divide by d (a_rad, mean square) or by sqrt(d) (rms), and print the unit with the number",
            note=f"{', '.join(subject.model.reports)}: as defined",
        )


def _unit(ratio: float, d: int) -> str:
    known = {"d": d, "sqrt(d)": math.sqrt(d), "1/sqrt(d)": 1 / math.sqrt(d), "1/d": 1 / d}
    for name, factor in known.items():
        if math.isclose(ratio, factor, rel_tol=1e-3):
            return f", a factor of {name} for d = {d}"
    return ""


NUDGE = 1e-3
"""Relative change of a state's scale. For a penalty on s^2 the difference quotient is exact; for others its error is of
order NUDGE^2."""
PENALTY_LIMIT = 1e-2
"""Far above NUDGE^2 and the rounding of float32 divided by NUDGE, far below the 1 of a penalty without gradient."""


@check(explained_by=("truncated_gradient",))
def penalty_gradient(subject: Subject) -> Iterator[Finding]:
    """A norm penalty computed without gradient: it is logged and has no effect."""
    if torch.finfo(subject.dtype).eps > NUDGE * PENALTY_LIMIT:
        raise NotApplicableError(f"{subject.dtype} cannot show a change of {NUDGE:g}; check the model in float32")
    penalty = subject.model.penalty or norm_penalty
    states = tuple(state.detach().requires_grad_() for state in subject.trace.states)
    trace = replace(subject.trace, states=states, grad=True)
    value = penalty(trace)
    gradients = (
        torch.autograd.grad(value, states, materialize_grads=True, allow_unused=True)
        if value.requires_grad
        else [torch.zeros_like(state) for state in states]
    )
    for k in range(1, trace.loops + 1):
        by_autograd = float((gradients[k] * states[k].detach()).sum())
        by_value = _change(penalty, trace, k)
        # If this state contributes little to the value, the difference quotient is mostly rounding.
        noise = abs(float(value.detach())) * torch.finfo(subject.dtype).eps / (NUDGE * PENALTY_LIMIT)
        yield at_most(
            abs(by_autograd - by_value) / max(abs(by_value), abs(by_autograd), noise, torch.finfo(subject.dtype).tiny),
            PENALTY_LIMIT,
            fault=f"the radial gradient of the norm penalty at H_{k} is {by_autograd:.3g}, but its value changes "
            f"by {by_value:.3g} per unit of log scale",
            cause="the penalty is computed under no_grad or on detached states: it is logged and has no effect",
            remedy="compute it on the states of the trajectory; lambda * mean rms^2 has a radial gradient of "
            "2 lambda s^2 / (K tokens) at each token",
        )
    if parameters := trainable(subject.model):
        yield _reaches(subject, penalty, parameters)
    yield Finding(held=True, message="the penalty's radial gradient is the derivative of its value")


def _change(penalty: Callable[[Trace], Tensor], trace: Trace, loop: int) -> float:
    """Derivative of the penalty by the log scale of H_loop, as a difference quotient of its value."""
    ends = []
    with torch.no_grad():
        for factor in (1 + NUDGE, 1 - NUDGE):
            states = list(trace.states)
            states[loop] = states[loop] * factor
            ends.append(float(penalty(replace(trace, states=tuple(states)))))
    return (ends[0] - ends[1]) / (2 * NUDGE)


def _reaches(subject: Subject, penalty: Callable[[Trace], Tensor], parameters: dict[str, Tensor]) -> Finding:
    """The finding that the penalty on a run has a gradient at some parameter."""
    copies = {name: parameter.clone().requires_grad_() for name, parameter in parameters.items()}
    value = penalty(subject.unroll(model=with_tensors(subject.model, copies), grad=True))
    gradients = torch.autograd.grad(value, list(copies.values()), materialize_grads=True, allow_unused=True)
    return at_least(
        max(float(gradient.abs().max()) for gradient in gradients),
        torch.finfo(subject.dtype).tiny,
        "per unit of a parameter",
        fault="the norm penalty has no gradient at any parameter",
        cause="the states on which it is computed are detached from the parameters",
        remedy="compute the penalty on the states of the trajectory, with gradients",
        note="the norm penalty reaches the parameters",
    )
