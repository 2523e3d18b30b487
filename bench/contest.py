"""One job timed against others, interleaved: each round runs the others first, in alternating order, then the job."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from loopverify.measures.timing import time_interleaved

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

__all__ = ["Contest", "Ratio", "clock_of"]

Job = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Time of the subject over that of a peer."""

    peer: str
    median: float
    """Over rounds, as are the next two."""
    low: float
    high: float
    at_most: float | None
    """The goal; None: there is none."""


def clock_of(device: str) -> Callable[[], float]:
    """CPU time where one thread computes, since others may use its core meanwhile; the wall's on an accelerator."""
    return time.process_time if device == "cpu" else time.perf_counter


@dataclass(frozen=True)
class Contest:
    """Times jobs with pytest-benchmark and adds the ratios to its record."""

    benchmark: BenchmarkFixture
    device: str
    quick: bool

    def __call__(
        self,
        subject: Job,
        peers: Mapping[str, Job],
        *,
        label: str,
        shape: str,
        rounds: int,
        goals: Mapping[str, float] | None = None,
        skipped: Mapping[str, str] | None = None,
    ) -> list[Ratio]:
        """Time `subject` against `peers` for `rounds` rounds after one warm-up round.

        Args:
            label: the name of the subject in the table.
            goals: upper limits of the ratio to a peer, by peer.
            skipped: why other peers are not timed, by peer.
        """
        device, seconds = torch.device(self.device), []

        def others() -> None:
            order = list(peers.items())[:: -1 if len(seconds) % 2 else 1]
            (times,) = time_interleaved(
                [job for _, job in order], repeats=1, warmup=0, clock=clock_of(self.device), device=device
            )
            seconds.append(dict(zip((name for name, _ in order), times, strict=True)))

        def timed() -> None:
            subject()
            if device.type != "cpu":
                torch.accelerator.synchronize(device)

        self.benchmark.pedantic(timed, setup=others, rounds=rounds, warmup_rounds=0 if self.quick else 1)
        own = self.benchmark.stats.stats.data
        ratios = [
            _ratio(name, own, [round_[name] for round_ in seconds[-len(own) :]], (goals or {}).get(name))
            for name in peers
        ]
        self.benchmark.extra_info.update(
            label=label, shape=shape, ratios=[asdict(ratio) for ratio in ratios], skipped=dict(skipped or {})
        )
        return ratios


def _ratio(peer: str, own: list[float], others: list[float], at_most: float | None) -> Ratio:
    by_round = [mine / other for mine, other in zip(own, others, strict=True)]
    return Ratio(peer=peer, median=statistics.median(by_round), low=min(by_round), high=max(by_round), at_most=at_most)
