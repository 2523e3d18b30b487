"""What looking at a live model costs: an audit, and a watch's look at the states of a step, against the step."""

from __future__ import annotations

import loopverify as lv
from bench.contest import Contest
from bench.shapes import Shape


def test_audit(contest: Contest, shape: Shape, device: str) -> None:
    model, (tokens, targets) = shape.looped("rmsnorm", device), shape.batch(device)
    contest(
        lambda: lv.audit(model, tokens, targets),
        {"a training step": shape.step("per_loop", "rmsnorm", device)},
        label="audit of the batch of one step",
        shape=shape.label,
        rounds=shape.rounds,
    )


def test_watch(contest: Contest, shape: Shape, device: str) -> None:
    model, (tokens, _) = shape.looped("rmsnorm", device), shape.batch(device)
    watch, trace = lv.Watch(), lv.unroll(model, tokens)
    contest(
        lambda: watch.look(0, trace),
        {"a training step": shape.step("per_loop", "rmsnorm", device)},
        label="look of a watch at the states of one step",
        shape=shape.label,
        rounds=shape.rounds,
    )
