"""The measured counterpart of Table 2: one row per condition, next to the paper's values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, stdev

from loopverify.claims import Run
from loopverify.claims.p1 import published
from loopverify.claims.p1.conditions import TABLE_2_ROWS
from loopverify.claims.quantity import number
from loopverify.claims.template import by_size

__all__ = ["Row", "Spread", "by_condition", "last_loop", "measured_rows"]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A mean over seeds and its sample standard deviation, if there are at least two seeds."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """The spread of the finite values; None if there are none."""
        finite = [value for value in values if math.isfinite(value)]
        return cls(mean=fmean(finite), std=stdev(finite) if len(finite) > 1 else None) if finite else None

    def __str__(self) -> str:
        return number(self.mean) if self.std is None else f"{number(self.mean)} ± {number(self.std, like=self.mean)}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One condition: the size of its final state and the perplexity of every exit."""

    condition: str
    seeds: tuple[int, ...]
    norm: Spread | None
    """Mean tokenwise ||H_K||_2 (L2 over channels), over seeds; None when no run has a finite one."""
    perplexity: tuple[float, ...]
    """Perplexity of exits 1..K, the mean over seeds as in the paper."""
    diverged: tuple[int, ...]
    """Seeds whose final norm is not finite; they are left out of `norm`."""
    metrics: Mapping[str, tuple[float, ...]]
    """Every metric that all of its runs have, in the order of `seeds`."""
    published_norm: Mapping[str, Spread]
    """The paper's final norm by model size, with its standard deviation."""
    published_perplexity: Mapping[str, float]
    """The paper's perplexity of exit 4 by model size."""


def by_condition(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of every condition, in the order of Table 2, followed by other conditions."""
    grouped = {name: list(group) for name, group in groupby(runs, key=lambda run: run.condition)}
    order = [*(row.name for row in TABLE_2_ROWS), *grouped]
    return {name: grouped[name] for name in sorted(grouped, key=order.index)}


def last_loop(runs: Iterable[Run], metric: str = "norm") -> int:
    """The largest k of any metric@k of the runs; 0 when there is none."""
    parts = [name.partition("@") for run in runs for name in run.metrics]
    return max((int(loop) for kind, _, loop in parts if kind == metric and loop.isdigit()), default=0)


def measured_rows(runs: Sequence[Run]) -> tuple[Row, ...]:
    """The rows of `runs`, which are sorted by condition, as `one_study` returns them."""
    loops = last_loop(runs)
    return tuple(_row(condition, of, loops) for condition, of in by_condition(runs).items())


def _row(condition: str, runs: list[Run], loops: int) -> Row:
    norms = {run.seed: run.metrics.get(f"norm@{loops}", math.nan) for run in runs}
    exits = [[run.metrics.get(f"ppl@{k}", math.nan) for run in runs] for k in range(1, loops + 1)]
    return Row(
        condition=condition,
        seeds=tuple(norms),
        norm=Spread.of(list(norms.values())),
        perplexity=tuple(fmean(of_exit) for of_exit in exits),
        metrics={
            name: tuple(run.metrics[name] for run in runs)
            for name in runs[0].metrics
            if all(name in run.metrics for run in runs)
        },
        diverged=tuple(seed for seed, norm in norms.items() if not math.isfinite(norm)),
        published_norm=by_size(lambda size: _published_norm(condition, size)),
        published_perplexity=by_size(lambda size: published.entry("T2", size, condition, "ppl")),
    )


def _published_norm(condition: str, size: str) -> Spread:
    """The paper's mean and, where it prints one, standard deviation."""
    mean = published.entry("T2", size, condition, "norm")
    std = published.row("T2", size, condition)["norm_std"]
    return Spread(mean=mean, std=None if std is None else float(std))
