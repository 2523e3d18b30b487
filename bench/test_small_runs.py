"""Whether seeds and conditions of the tiny ablation can be trained faster than one run after another."""

from __future__ import annotations

import os
import statistics
from dataclasses import asdict

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.contest import Contest, Ratio
from bench.shapes import QUICK, SHAPES
from bench.small_runs import processes, seconds_in_turn, seconds_side_by_side, stacked_step

MEMBERS = 3


@pytest.mark.filterwarnings(
    "ignore:There is a performance drop"
)  # attention has no rule for stacks: part of the finding
def test_stacked_members(contest: Contest, device: str, quick: bool) -> None:
    shape = QUICK if quick else SHAPES["tiny"]
    step = shape.step("per_loop", "rmsnorm", device)
    contest(
        stacked_step(shape, MEMBERS, device),
        {"a step of each, one after another": lambda: [step() for _ in range(MEMBERS)]},
        label=f"one step of {MEMBERS} members stacked by torch.func",
        shape=shape.label,
        rounds=shape.rounds,
        goals={"a step of each, one after another": 1 / 1.5},
    )


def test_processes_side_by_side(benchmark: BenchmarkFixture, device: str, quick: bool) -> None:
    cores = len(os.sched_getaffinity(0))
    if device != "cpu" or cores < 2:
        pytest.skip(f"two processes of one thread need two cores; there are {cores}, and the device is {device}")
    shape = QUICK if quick else SHAPES["tiny"]
    with processes(2, steps=2 if quick else 60, quick=quick) as children:
        rounds = [(seconds_side_by_side(children), seconds_in_turn(children)) for _ in range(1 if quick else 5)]
    by_round = [together / in_turn for together, in_turn in rounds]
    benchmark.pedantic(lambda: None)  # what is measured are other processes, by the wall's clock
    ratio = Ratio(
        peer="one after another",
        median=statistics.median(by_round),
        low=min(by_round),
        high=max(by_round),
        at_most=1 / 1.5,
    )
    benchmark.extra_info.update(
        label="two runs side by side, a process and a thread each (wall)", shape=shape.label, ratios=[asdict(ratio)]
    )
