"""The same tokens give the same run: in eval mode, with and without gradients, for any global random state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from loopverify.checks.calls import counted
from loopverify.checks.check import check
from loopverify.checks.readout.readouts import logits_form
from loopverify.checks.result import Finding, at_most
from loopverify.checks.subject import SEED, Subject, gap, pin

__all__ = ["determinism", "grad_mode", "sampled_depth"]

DRAWS = 4
"""Runs from different random states; a depth drawn from two values goes undetected in 1 of 8 cases."""


@dataclass(frozen=True, eq=False)
class _Run:
    states: list[Tensor]
    logits: Tensor
    calls: Counter[nn.Module]


def _run(subject: Subject, embed_seed: int, step_seed: int) -> _Run:
    """A run with one seed before the embedding and another before the steps."""
    with torch.no_grad(), counted() as calls:
        pin(embed_seed)
        state, context = subject.model.embed(subject.tokens)
        pin(step_seed)
        states = [state]
        for k in range(1, subject.loops + 1):
            states.append(subject.model.step(states[-1], context, k))
        logits = subject.model.readout(states[-1], context, subject.loops, subject.loops)
    return _Run(states, logits, calls)


@check(decides="random_state", explained_by=("sampled_depth",), presupposes=(logits_form,))
def determinism(subject: Subject) -> Finding:
    """Two forwards of one model differ: the initial state is drawn at random."""
    first, second = _run(subject, SEED + 1, SEED + 1), _run(subject, SEED + 2, SEED + 2)
    repeated = _run(subject, SEED + 1, SEED + 2)
    gaps = [*map(gap, second.states, first.states), gap(second.logits, first.logits)]
    places = [f"H_{k}" for k in range(subject.loops + 1)] + ["the logits"]
    place = next((name for name, far in zip(places, gaps, strict=True) if not far <= subject.state_limit), "")
    removed = gap(repeated.logits, first.logits) <= subject.logits_limit
    cause = (
        "embed draws the initial state (or its noise) from the global generator, also in eval mode; seeding it removes "
        "the difference"
        if removed
        else "step or readout draws random numbers in eval mode (see check sampled_depth)"
    )
    return at_most(
        max(gaps),
        max(subject.state_limit, subject.logits_limit),
        fault=f"two forwards of the same tokens differ, from {place} on",
        cause=cause,
        remedy="fix the initial state (zeros, or a generator of its own with a fixed seed), or declare 'random_state'",
        note="two forwards agree from H_0 to the logits",
    )


@check(decides="sampled_depth", presupposes=(logits_form,))
def sampled_depth(subject: Subject) -> Iterator[Finding]:
    """A loop that is random in eval mode: its depth is sampled, or dropout stays on."""
    runs = [_run(subject, SEED, SEED + draw) for draw in range(DRAWS)]
    counts = sorted({run.calls.total() for run in runs})
    depth = f"a run of {subject.loops} loops makes {counts[0]} to {counts[-1]} module calls: the depth is sampled"
    noise = "runs from the same H_0 and different random states differ"

    def finding(far: float, fault: str) -> Finding:
        return at_most(
            far,
            max(subject.state_limit, subject.logits_limit),
            fault=fault,
            cause="a training-time draw (number of loops, layer drop, dropout) that ignores self.training",
            remedy="draw in training mode only and let the number of loops be an argument, or declare 'sampled_depth'",
            note=f"runs from {DRAWS} random states agree",
        )

    for run in runs[1:]:
        yield finding(gap(run.states[-1], runs[0].states[-1]), depth if len(counts) > 1 else noise)
    # A path computes its own H_0: where that is random, paths differ even if no loop is.
    for name, path in subject.model.paths.items() if subject.repeatable else ():
        logits = []
        for draw in range(DRAWS):
            pin(SEED + draw)
            with torch.no_grad():
                logits.append(path(subject.tokens, subject.loops))
        far = max(gap(other, logits[0]) for other in logits[1:])
        yield finding(far, f"the path '{name}' gives different logits for the same tokens and loops")


@check(explained_by=("sampled_depth",), presupposes=(logits_form,))
def grad_mode(subject: Subject) -> Iterator[Finding]:
    """A forward that gives different results when gradients are recorded: training and inference paths differ."""
    plain, recorded = subject.trace, subject.unroll(grad=True)

    def finding(far: float, limit: float, place: str) -> Finding:
        return at_most(
            far,
            limit,
            fault=f"with gradients recorded, {place} differ from those without",
            cause="a branch on torch.is_grad_enabled() or requires_grad (another kernel, checkpointing, a shortcut)",
            remedy="compute the same function in both modes",
            note="the run is the same with and without gradients",
        )

    for k in range(1, plain.loops + 1):
        yield finding(gap(recorded.states[k], plain.states[k]), subject.state_limit, f"H_{k}")
        yield finding(gap(recorded.logits(k), plain.logits(k)), subject.logits_limit, f"the logits of exit {k}")
