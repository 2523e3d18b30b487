"""A made-up study in the form of Table 2: seven conditions, four loops, one training history per run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from loopverify.claims import Run, claims_for

TABLE_2 = claims_for(["P1.T2"])
"""The claims that the study can answer in full."""
# condition -> (final norm, CE at exits 1..4)
STUDY: dict[str, tuple[float, tuple[float, ...]]] = {
    "terminal/rmsnorm": (2569.0, (3.034, 2.585, 2.414, 2.370)),
    "terminal/raw": (9.1, (2.939, 2.440, 2.209, 2.159)),
    "per_loop/rmsnorm": (3407.0, (2.466, 2.395, 2.377, 2.375)),
    "per_loop/raw": (9.2, (2.233, 2.177, 2.176, 2.188)),
    "per_loop/final_only": (11.2, (2.194, 2.173, 2.183, 2.187)),
    "terminal+penalty/rmsnorm": (8.0, (2.9, 2.45, 2.21, 2.17)),
    "per_loop+penalty/rmsnorm": (120.0, (2.167, 2.127, 2.130, 2.144)),  # contradicts its bound
}


def sample_run(condition: str, seed: int, **changes: float) -> Run:
    norm, ce = STUDY[condition]
    metrics = {f"norm@{k}": norm * (0.3 + 0.7 * k / 4) * (1 + 0.05 * seed) for k in range(5)}
    metrics |= {f"ce@{k}": value + 0.004 * seed for k, value in enumerate(ce, start=1)}
    metrics |= {f"ppl@{k}": math.exp(metrics[f"ce@{k}"]) for k in range(1, 5)}
    facts = {"device": "cpu", "dtype": "float32", "torch": "2.6.0", "text": "made up", "wall_s": f"{60 + 7 * seed}"}
    return Run(
        preset="tiny",
        condition=condition,
        seed=seed,
        metrics=metrics | {name.replace("_", "@"): value for name, value in changes.items()},
        facts=facts,
        key=f"{condition}#{seed}",
    )


def sample_runs(seeds: int = 3, conditions: Sequence[str] = tuple(STUDY)) -> list[Run]:
    return [sample_run(condition, seed) for condition in conditions for seed in range(seeds)]


def sample_histories(runs: Sequence[Run]) -> dict[str, list[dict[str, Any]]]:
    """The final norm is reached on an exponential from 5."""
    return {
        run.key: [
            {"event": "eval", "step": step, "norm@4": 5 * (run.metrics["norm@4"] / 5) ** (step / 1500), "ce@4": 3.0}
            for step in range(100, 1600, 100)
        ]
        for run in runs
    }
