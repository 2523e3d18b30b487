"""Exact small-sample statistics over seeds: tests, effect sizes, intervals, and the smallest p that a design can reach.

All but the bootstrap is integer counting without further libraries; the bootstrap is scipy's.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from loopverify.errors import InputError, MissingDependencyError

__all__ = [
    "bootstrap_interval",
    "can_reach",
    "cliffs_delta",
    "holm",
    "mcnemar",
    "rank_test",
    "seeds_needed",
    "smallest_p",
]


def rank_test(x: Sequence[float], y: Sequence[float]) -> float:
    """Exact one-sided Mann-Whitney p for x > y: the share of all C(n+m, n) relabelings that favor x at least as much.

    Ties get midranks, over which the relabelings are counted, so that p is exact with ties as well. Infinite values
    are ranked like any other. For a two-sided p, double the smaller of the two directions.

    Raises:
        InputError: a side is empty, or a value is NaN.
    """
    _check_sides(x, y)
    ranks = _doubled_midranks([*x, *y])
    as_extreme = _subsets_reaching(ranks, size=len(x), total=sum(ranks[: len(x)]))
    return as_extreme / math.comb(len(ranks), len(x))


def cliffs_delta(x: Sequence[float], y: Sequence[float]) -> float:
    """P(x > y) - P(x < y) over all pairs: 1 when every x is above every y, 0 when neither side dominates.

    Raises:
        InputError: a side is empty, or a value is NaN.
    """
    _check_sides(x, y)
    return sum((a > b) - (a < b) for a in x for b in y) / (len(x) * len(y))


def smallest_p(n: int, m: int) -> float:
    """The p of a one-sided rank test of n against m values that separate perfectly: 1 / C(n+m, n)."""
    if n < 1 or m < 1:
        raise InputError(f"n = {n} and m = {m}; expected at least one value per side")
    relabelings = math.comb(n + m, n)
    return 1 / relabelings


def can_reach(alpha: float, n: int, m: int) -> bool:
    """Whether a one-sided rank test of n against m values can give p <= alpha at all."""
    return smallest_p(n, m) <= _probability("alpha", alpha)


def seeds_needed(alpha: float) -> int:
    """The smallest n for which a one-sided rank test of n against n values can give p <= alpha."""
    if not _probability("alpha", alpha):
        raise InputError("alpha is 0; expected a number > 0, because no number of seeds reaches 0")
    return next(n for n in itertools.count(1) if can_reach(alpha, n, n))


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p of McNemar's test, from the numbers of cases that only the first or only the second got right.

    Raises:
        InputError: a count is negative.
    """
    if min(only_first, only_second) < 0:
        raise InputError(f"counts of discordant pairs are {only_first} and {only_second}; expected integers >= 0")
    pairs = only_first + only_second
    tail = sum(math.comb(pairs, count) for count in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / (1 << pairs))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p values, in the order given; reject those <= alpha.

    Raises:
        InputError: a p is outside 0..1.
    """
    for p in p_values:
        _probability("p", p)
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - step) * p_values[place]))
        adjusted[place] = running
    return tuple(adjusted)


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[Any], float] = statistics.fmean,
    *,
    confidence: float = 0.95,
    method: Literal["BCa", "percentile"] = "BCa",
    resamples: int = 9999,
    seed: int = 0,
) -> tuple[float, float]:
    """Bootstrap confidence interval (low, high) of `statistic` over `values`.

    Args:
        values: one number per seed, task or batch; at least two.
        statistic: maps a sample, a one-dimensional array, to a number; called once per resample.

    Raises:
        InputError: there are fewer than two values, or one is not finite.
        MissingDependencyError: scipy is not installed.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        raise InputError(f"values are {list(values)}; expected two or more finite numbers to resample")
    _probability("confidence", confidence)
    import numpy as np

    bootstrap = _scipy_bootstrap()
    sample = np.asarray(values)
    if min(values) == max(values):  # every resample is the sample itself, for which BCa is undefined
        return float(statistic(sample)), float(statistic(sample))
    interval = bootstrap(
        (sample,),
        lambda resample: statistic(resample),  # scipy inspects signatures, which builtins may lack
        vectorized=False,
        confidence_level=confidence,
        method=method,
        n_resamples=resamples,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def _scipy_bootstrap() -> Callable[..., Any]:
    try:
        from scipy.stats import bootstrap
    except ImportError as error:
        raise MissingDependencyError(
            "scipy is not installed; bootstrap_interval needs it. Install it with: pip install 'loopverify[stats]'"
        ) from error
    found: Callable[..., Any] = bootstrap
    return found


def _doubled_midranks(values: Sequence[float]) -> list[int]:
    """Twice the midrank of each value, an integer: (how many are below) + (how many are not above) + 1."""
    return [sum(other < value for other in values) + sum(other <= value for other in values) + 1 for value in values]


def _subsets_reaching(ranks: Sequence[int], *, size: int, total: int) -> int:
    """The number of subsets of `size` ranks that sum to `total` or more."""
    # ways[j][s] counts the subsets of j of the ranks so far that sum to s. All C(32, 16) subsets fall into some 10^4
    # such cells; enumerating them would take 10^8 steps.
    ways: list[Counter[int]] = [Counter() for _ in range(size + 1)]
    ways[0][0] = 1
    for rank in ranks:
        for chosen in range(size, 0, -1):
            for partial, count in ways[chosen - 1].items():
                ways[chosen][partial + rank] += count
    return sum(count for reached, count in ways[size].items() if reached >= total)


def _check_sides(x: Sequence[float], y: Sequence[float]) -> None:
    for name, side in (("x", x), ("y", y)):
        if len(side) == 0:
            raise InputError(f"{name} is empty; expected at least one value per side")
        if any(math.isnan(value) for value in side):
            raise InputError(f"{name} is {list(side)}; expected numbers, because NaN has no rank")


def _probability(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise InputError(f"{name} is {value!r}; expected a probability 0..1")
    return value
