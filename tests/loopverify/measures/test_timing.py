"""Interleaved timing on a clock that only the jobs advance."""

from __future__ import annotations

import pytest

from loopverify.errors import InputError
from loopverify.measures.timing import median_ratio, time_interleaved


class Bench:
    """Jobs that take a known time, and a clock that slows down as the rounds go on."""

    def __init__(self) -> None:
        self.now, self.log = 0.0, list[str]()

    def job(self, name: str, seconds: float) -> None:
        self.log.append(name)
        self.now += seconds * (1 + self.now)


def test_rounds_alternate_in_direction_and_warm_up_does_not_count() -> None:
    bench = Bench()
    jobs = [lambda: bench.job("a", 1), lambda: bench.job("b", 3)]
    rounds = time_interleaved(jobs, repeats=3, warmup=1, clock=lambda: bench.now)
    assert "".join(bench.log) == "abbaabba"
    assert len(rounds) == 3
    # The first round that counts runs backwards: b at 7 (after 1 and 3·2), 3·8 = 24, then a at 31, 32.
    assert rounds[0] == [32.0, 24.0]


def test_a_ratio_is_the_median_of_ratios() -> None:
    assert median_ratio([[1.0, 2.0], [100.0, 10.0], [3.0, 1.0]], over=0, under=1) == 3.0


def test_refusal() -> None:
    for repeats in (0, 1.5):
        with pytest.raises(InputError, match=f"repeats is {repeats}; expected an integer >= 1"):
            time_interleaved([], repeats=repeats)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="warmup is -1; expected an integer >= 0"):
        time_interleaved([], warmup=-1)
