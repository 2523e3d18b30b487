"""Timing several things fairly: in turns, so that a machine that slows down slows all of them.

Every round runs every job once, forwards and backwards by turns; what is reported is a median of ratios within rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from loopverify.arguments import check_count

__all__ = ["Clock", "median_ratio", "take_turns"]

Clock = Callable[[], float]
"""Seconds, from any start."""


def take_turns(
    jobs: Sequence[Callable[[], object]],
    *,
    repeats: int = 5,
    warmup: int = 1,
    clock: Clock = time.perf_counter,
    device: torch.device | None = None,
) -> list[list[float]]:
    """Seconds of each job (inner lists, in their order) in each of `repeats` rounds, after `warmup` that do not count.

    Args:
        device: an accelerator to be waited for before and after each job.

    Raises:
        InputError: no repeats, or a warmup below 0.
    """
    check_count("repeats", repeats)
    check_count("warmup", warmup, "an integer >= 0", least=0)
    rounds = [_round(jobs, clock, device, backwards=bool(i % 2)) for i in range(warmup + repeats)]
    return rounds[warmup:]


def median_ratio(rounds: Sequence[Sequence[float]], over: int, under: int) -> float:
    """Median over the rounds of the seconds of job `over` divided by those of job `under`."""
    return statistics.median(seconds[over] / seconds[under] for seconds in rounds)


def _round(
    jobs: Sequence[Callable[[], object]], clock: Clock, device: torch.device | None, *, backwards: bool
) -> list[float]:
    seconds = [0.0] * len(jobs)
    places = range(len(jobs))
    for place in reversed(places) if backwards else places:
        _wait(device)
        begun = clock()
        jobs[place]()
        _wait(device)
        seconds[place] = clock() - begun
    return seconds


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type != "cpu":
        torch.accelerator.synchronize(device)
