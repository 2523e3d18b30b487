"""Training throughput: a step of the harness against a plain PyTorch step on the same model."""

from __future__ import annotations

from bench.contest import Contest
from bench.shapes import Shape


def test_training_step(contest: Contest, shape: Shape, device: str) -> None:
    contest(
        shape.step("per_loop", "rmsnorm", device),
        {"a plain loop after nanoGPT": shape.peer_step(device)},
        label="training step of the harness, per_loop/rmsnorm",
        shape=shape.label,
        rounds=3 * shape.rounds,  # the closest of all goals
        goals={"a plain loop after nanoGPT": 1.0},
    )
