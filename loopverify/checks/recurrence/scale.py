"""The growth of the norm over loops: growth that the readout hides, and declared growth laws."""

from __future__ import annotations

from collections.abc import Iterator

from loopverify.auditing.carry import scale_carry
from loopverify.auditing.exit_sweep import exit_sweep
from loopverify.auditing.growth import RESOLUTION, GrowthLaw, fit_growth, mean_scales
from loopverify.checks.check import check
from loopverify.checks.readout.readouts import logits_form
from loopverify.checks.result import Finding, NotApplicableError, at_most
from loopverify.checks.subject import Subject
from loopverify.checks.traits import GROWTH
from loopverify.errors import InputError
from loopverify.looped import Trace

__all__ = ["growth_law", "hidden_growth"]

LOOPS = 8
"""Enough to distinguish a constant factor per loop from a sum of bounded updates, see FACTOR."""
FACTOR = 1.5
"""Largest factor per loop over the last four of eight loops. Linear growth from zero gives (8/4)^(1/4) = 1.19, growth
as a square root less."""
GROWTH_RATIO, LEAST_LOOPS, MOST_LOOPS = 4, 8, 64
"""The law is fitted over four times the trained loops, within these bounds."""


@check(decides="amplified_scale", presupposes=(logits_form,))
def hidden_growth(subject: Subject) -> Finding:
    """A norm that grows by a constant factor per loop, hidden by the readout."""
    trace = subject.unroll(loops=LOOPS)
    scales = mean_scales(trace)
    middle = LOOPS // 2
    factor = (scales[-1] / scales[middle]) ** (1 / (LOOPS - middle)) if scales[middle] > 0 else 1.0
    visibility = exit_sweep(trace, subject.others(trace.tokens), LOOPS).visibility
    course = f"rms {scales[0]:.3g} -> {scales[-1]:.3g} over {LOOPS} loops, {visibility} to the readout"
    if visibility != "hidden":
        return Finding(held=True, message=f"{course}: a loss can control it", value=factor, unit="per loop")
    return at_most(
        factor,
        FACTOR,
        "per loop",
        fault=f"every loop amplifies the norm and no loss sees it: {course}",
        cause="a residual output that is added again (the block returns state + update and the loop adds the state)",
        remedy="add every residual once; then a norm penalty, a raw exit or a norm at the loop boundary controls scale",
        note=f"{course}; {_verdict(trace)}",
    )


def _verdict(trace: Trace) -> str:
    try:
        carry = scale_carry(trace, trace.loops)
    except InputError as error:
        return f"its carry could not be measured ({error})"
    verdict = f"{carry.kind} by the loop (factor {carry.factor:.3g})"
    if carry.kind == "carried":
        return f"{verdict}: a blind spot by design; without norm penalty or raw exit, the objective does not control it"
    return verdict


@check()
def growth_law(subject: Subject) -> Iterator[Finding]:
    """A declared growth law of the norm (constant, square root, linear, exponential) that a fit contradicts."""
    try:
        fit = fit_growth(mean_scales(subject.unroll(loops=_many(subject)))[1:])
    except InputError as error:
        raise NotApplicableError(f"no growth law can be fitted: {error}") from error
    claimed = sorted(subject.model.declares & set(GROWTH))
    seen = f"{fit.law} growth over {fit.loops} loops (relative error {fit.error:.2g}; {_others(fit)})"
    if not claimed:
        raise NotApplicableError(f"no growth law is claimed (declare one of {', '.join(GROWTH)}); seen: {seen}")
    for trait in claimed:
        yield at_most(
            {str(law): error for law, error in fit.errors.items()}[GROWTH[trait]],
            # Below twice the best error, or below the resolution of `fit_growth`, laws are indistinguishable.
            max(2 * fit.error, RESOLUTION),
            fault=f"the model claims '{trait}' but shows {seen}",
            cause="the law was derived from too few loops, or holds for random updates but not for aligned ones",
            remedy=f"declare 'growth_{fit.law}', or bound the updates",
            note=f"as claimed: {seen}",
        )


def _many(subject: Subject) -> int:
    return min(max(GROWTH_RATIO * subject.model.trained_loops, LEAST_LOOPS), MOST_LOOPS)


def _others(fit: GrowthLaw) -> str:
    return ", ".join(f"{law} {error:.2g}" for law, error in fit.errors.items() if law != fit.law)
