"""Timing several jobs fairly: interleaved, so that a machine that slows down affects all of them alike.

Every round runs every job once, alternately in forward and in reverse order. Ratios are taken within a round and then
their median over rounds, which a single slow round does not change.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from loopverify.arguments import check_count

__all__ = ["Clock", "median_ratio", "time_interleaved"]

Clock = Callable[[], float]
"""Returns seconds, counted from an arbitrary start."""


def time_interleaved(
    jobs: Sequence[Callable[[], object]],
    *,
    repeats: int = 5,
    warmup: int = 1,
    clock: Clock = time.perf_counter,
    device: torch.device | None = None,
) -> list[list[float]]:
    """Time every job in each of `repeats` rounds, after `warmup` rounds that do not count.

    Args:
        device: an accelerator that is synchronized before and after each job.

    Returns:
        One list per round, with the seconds of each job in the order of `jobs`.

    Raises:
        InputError: repeats is below 1, or warmup below 0.
    """
    check_count("repeats", repeats)
    check_count("warmup", warmup, "an integer >= 0", least=0)
    rounds = [_round(jobs, clock, device, reverse=bool(i % 2)) for i in range(warmup + repeats)]
    return rounds[warmup:]


def median_ratio(rounds: Sequence[Sequence[float]], over: int, under: int) -> float:
    """Median over the rounds of the seconds of job `over` divided by those of job `under`."""
    return statistics.median(seconds[over] / seconds[under] for seconds in rounds)


def _round(
    jobs: Sequence[Callable[[], object]], clock: Clock, device: torch.device | None, *, reverse: bool
) -> list[float]:
    seconds = [0.0] * len(jobs)
    places = range(len(jobs))
    for place in reversed(places) if reverse else places:
        _synchronize(device)
        start = clock()
        jobs[place]()
        _synchronize(device)
        seconds[place] = clock() - start
    return seconds


def _synchronize(device: torch.device | None) -> None:
    if device is not None and device.type != "cpu":
        torch.accelerator.synchronize(device)
