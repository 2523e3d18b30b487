"""What a look at a live model costs: an audit against one training step of the model."""

from __future__ import annotations

import loopverify as lv
from bench.contest import Contest
from bench.shapes import Shape


def test_audit(contest: Contest, shape: Shape, device: str) -> None:
    model, (tokens, targets) = shape.looped("rmsnorm", device), shape.batch(device)
    contest(
        lambda: lv.audit(model, tokens, targets),
        {"a training step": shape.step("per_loop", "rmsnorm", device)},
        told="audit of the batch of one step",
        shape=shape.told,
        rounds=shape.rounds,
    )
