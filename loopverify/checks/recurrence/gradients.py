"""Gradients reach every state and every parameter, and are the derivative of the forward."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from loopverify.checks.check import check
from loopverify.checks.readout.readouts import logits_form
from loopverify.checks.result import Finding, NotApplicableError, at_least, at_most, none
from loopverify.checks.subject import Subject, exactly, pin
from loopverify.checks.substitute import trainable, with_tensors
from loopverify.errors import GradientCutError
from loopverify.looped import Looped, Trace, unroll
from loopverify.objectives.terms import per_loop

__all__ = ["gradient_is_derivative", "optimizer_step", "parameter_gradient", "state_gradient"]

TRIALS = 4
"""Batches in one of which a parameter must get a gradient: an expert may be chosen rarely."""
JITTER = 0.02
"""Standard deviation of the noise added to parameters first: behind a zero-initialized output projection, no parameter
would get a gradient."""
NUDGES = (1e-3, 1e-4, 1e-5)
"""Relative lengths of the finite difference. Its error is of the order of their squares, times a curvature that may be
large, and 1e-7 divided by the length for a model that computes parts in float32; and the decision of a router may flip.
The smallest error of the three is used: a wrong gradient is wrong at all of them."""
DIRECTIONS = 3
"""Random directions for each length: a wrong gradient may agree along one of them by chance."""
DERIVATIVE_LIMIT = 1e-2
"""Ten times 1e-7 / 1e-4. A detached part of the step causes an error of a tenth or more."""


@check(explained_by=("truncated_gradient",), presupposes=(logits_form,))
def state_gradient(subject: Subject) -> Iterator[Finding]:
    """A recurrence cut between two loops: no gradient flows from the last exit back to H_0."""
    pin()
    remedy = "remove the detach or no_grad between loops, or declare 'truncated_gradient'"
    try:
        trace = unroll(subject.model, subject.tokens, subject.loops, grad=True)
    except GradientCutError as error:
        yield Finding(held=False, message=f"{error}. Remedy: {remedy}.")
        return
    logits = trace.logits(trace.loops)
    gradients = torch.autograd.grad(logits, trace.states, subject.normal(logits), allow_unused=True)
    sizes = [0.0 if g is None else float(exactly(g).norm()) for g in gradients]
    weakest = min(range(len(sizes)), key=lambda k: -1.0 if math.isnan(sizes[k]) else sizes[k])
    yield at_least(
        sizes[weakest],
        torch.finfo(subject.dtype).tiny,
        "L2 norm",
        fault=f"the gradient of the logits of exit {trace.loops} at H_{weakest} is {sizes[weakest]:.3g}",
        cause="a detach inside the step, a saturated nonlinearity, or a division by a zero norm",
        remedy=remedy,
    )
    yield at_most(
        max(sizes),
        torch.finfo(torch.float32).max,
        "L2 norm",
        fault=f"the gradient of the logits of exit {trace.loops} overflows on the way to H_0",
        cause="a step that amplifies its input at every loop",
        remedy="damp the recurrence: a smaller initialization, or a norm at the loop boundary",
        note=f"the gradient reaches all of H_0..H_{trace.loops}",
    )


@check(decides="truncated_gradient")
def gradient_is_derivative(subject: Subject) -> Finding:
    """A gradient that is not the derivative of the forward: part of the step is detached, or a hand-written backward
    is wrong."""
    model, trace = subject.in_dtype(torch.float64, grad=True)
    weights = subject.normal(trace.states[-1])
    (gradient,) = torch.autograd.grad((trace.states[-1] * weights).sum(), trace.states[0])
    error = math.inf
    for nudge in NUDGES:
        worst = max(_discrepancy(subject, model, trace, weights, gradient, nudge) for _ in range(DIRECTIONS))
        error = min(error, worst)
        if error <= DERIVATIVE_LIMIT:
            break
    return at_most(
        error,
        DERIVATIVE_LIMIT,
        fault=f"the gradient of H_{trace.loops} at H_0 is not the derivative of the forward",
        cause="a part of the step is detached (a scale, a gate, a residual), or a custom backward is wrong",
        remedy="let the gradient flow through all of the step, or declare 'truncated_gradient'",
        note="autograd agrees with a finite difference in float64",
    )


def _discrepancy(
    subject: Subject, model: Looped, trace: Trace, weights: Tensor, gradient: Tensor, nudge: float
) -> float:
    """Relative difference of the derivative along a random direction by autograd and by a difference of two runs.

    It is relative to the derivative along a typical direction: along the given one, terms may cancel by chance.
    """
    base = trace.states[0].detach()
    direction = subject.normal(base) * nudge * base.square().mean().sqrt().clamp_min(1e-3)
    ends = [_final_state(subject, model, base + sign * direction) for sign in (1, -1)]
    measured = float(((ends[0] - ends[1]) * weights).sum()) / 2
    typical = float(gradient.norm() * direction.norm()) / math.sqrt(gradient.numel())
    difference = abs(float((gradient * direction).sum()) - measured)
    # The caller takes a maximum, in which NaN might get lost.
    return difference / max(typical, abs(measured), 1e-300) if math.isfinite(difference) else math.inf


def _final_state(subject: Subject, model: Looped, state: Tensor) -> Tensor:
    pin()
    with torch.no_grad():
        _, context = model.embed(subject.tokens)
        for k in range(1, subject.loops + 1):
            state = model.step(state, context, k)
    return state


@check(decides="unused_parameters", explained_by=("truncated_gradient",), presupposes=(logits_form,))
def parameter_gradient(subject: Subject) -> Finding:
    """Parameters that get no gradient from any exit: layers that never run (a hard-coded number of layers), detached
    parts."""
    trained = _trained(subject)
    alive: set[str] = set()
    for _ in range(TRIALS):
        moved = {name: (p + JITTER * subject.normal(p)).requires_grad_() for name, p in trained.items()}
        model = with_tensors(subject.model, moved)
        trace = subject.unroll(subject.draw(8, 16), model=model, grad=True)
        gradients = torch.autograd.grad(_all_exits(subject, trace), list(moved.values()), allow_unused=True)
        alive |= {name for name, g in zip(moved, gradients, strict=True) if g is not None and bool((g != 0).any())}
        if len(alive) == len(trained):
            break
    dead = [name.partition(".")[2] for name in trained if name not in alive]
    return none(
        len(dead),
        "parameters",
        fault=f"no gradient reaches {', '.join(dead[:5])}{' and more' if len(dead) > 5 else ''}",
        cause="layers that the step never runs (a hard-coded number of layers), a detach, or parts that no exit uses",
        remedy="run every layer in step, or declare 'unused_parameters'",
        note=f"all {len(trained)} trainable parameters get a gradient",
    )


def _trained(subject: Subject) -> dict[str, Tensor]:
    trained = trainable(subject.model)
    if not trained:
        raise NotApplicableError("no trainable parameters found; name the module that owns them in Looped(module=...)")
    return trained


def _all_exits(subject: Subject, trace: Trace) -> Tensor:
    """A scalar that depends on the logits of every exit and on the exit probabilities, if the model has them."""
    targets = subject.others(trace.tokens)
    loss = per_loop(trace, targets)
    if trace.model.exit_probabilities is not None:
        probabilities = trace.model.exit_probabilities(trace)
        loss = loss + (probabilities * subject.normal(probabilities)).sum().to(loss)
    return loss


@check(presupposes=(logits_form,))
def optimizer_step(subject: Subject) -> Iterator[Finding]:
    """A step of AdamW on the per-loop loss after which a loss, a gradient or a parameter is not finite."""
    copies = {name: tensor.clone().requires_grad_() for name, tensor in _trained(subject).items()}
    model = with_tensors(subject.model, copies)
    targets = subject.others(subject.tokens)
    optimizer = torch.optim.AdamW(list(copies.values()), lr=1e-3)

    def finding(tensors: list[Tensor], what: str) -> Finding:
        bad = sum(int((~torch.isfinite(tensor)).sum()) for tensor in tensors)
        return none(
            bad,
            "values that are not finite",
            fault=f"{what} is not finite",
            cause="the derivative of a norm at zero, a logarithm of zero, a division without epsilon, or overflow",
            remedy="add an epsilon inside the square root and compute norms and softmax in float32",
            note="loss, gradients and parameters stay finite",
        )

    before = per_loop(subject.unroll(model=model, grad=True), targets)
    yield finding([before], "loss")
    gradients = torch.autograd.grad(before, list(copies.values()), allow_unused=True)
    for parameter, gradient in zip(copies.values(), gradients, strict=True):
        parameter.grad = gradient
    yield finding([g for g in gradients if g is not None], "gradient")
    optimizer.step()
    yield finding(list(copies.values()), "parameter after the step")
    after = per_loop(subject.unroll(model=model), targets)
    yield finding([after], f"loss after the step (before: {float(before.detach()):.4g})")
