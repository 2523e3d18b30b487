"""The speed-up of halting in seconds: perplexity against throughput (Sharma & Vu 2026, Figure 4 and Table 13).

A model is run at every fixed depth, read at its last exit only, and under halting rules whose thresholds are calibrated
on other sequences; all runs are timed interleaved. The speed-up of a rule is compared with two ideals: K over the
average loops, which ignores that scoring an exit costs time, and the *ideal by counted work*,
(K + h) / (loops + h·products), from the counted loops and head products and the cost h of a head product in loops. h
comes from the same rounds: the seconds of fixed depth k are a line, t_k = e + a·k, and h = e/a (which includes the
embedding).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from loopverify.arguments import check_kind
from loopverify.halting.calibration import PAPER_BUDGET, calibrate
from loopverify.halting.confidence import Score, named
from loopverify.halting.dynamic_batch import DynamicRun, run_batches
from loopverify.halting.exit_table import exit_table
from loopverify.looped import Looped
from loopverify.measures.held_out import Batches, batch_pairs, perplexity
from loopverify.measures.timing import Clock, median_ratio, time_interleaved
from loopverify.readonly import untouched

__all__ = ["Frontier", "FrontierPoint", "Rule", "frontier", "head_cost", "ideal_speedup", "race"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A halting rule, ready to run."""

    score: Score
    threshold: float
    budget: float | None = None
    """The ratio of dynamic to fixed perplexity that it was calibrated to; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """One way to run the model: at a fixed depth, or under a halting rule."""

    score: str | None
    """Name of the score; None for fixed depth."""
    threshold: float | None
    budget: float | None
    selected_loops: float
    """Mean number of loops per sequence chosen by the rule."""
    executed_loops: float
    """Loops run per token."""
    head_products: float
    """Products with the whole head per token."""
    loss: float
    """Cross-entropy of the exits taken, nats per token."""
    tokens_per_second: float
    """Median over rounds, on this machine; not comparable with other machines."""
    speedup: float
    """Speed relative to fixed depth K, median over rounds."""
    ideal: float
    """The speed-up that follows from the counted work."""

    @property
    def perplexity(self) -> float:
        """exp(loss), per token."""
        return perplexity(self.loss)

    @property
    def share_of_ideal(self) -> float:
        """speedup / ideal; below 1 by the overhead of the engine."""
        return self.speedup / self.ideal


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """A model at every fixed depth and under halting rules."""

    model: str
    loops: int
    """K."""
    fixed: tuple[FrontierPoint, ...]
    """Depths 1..K."""
    halting: tuple[FrontierPoint, ...]
    head_cost: float
    """h, in loops; NaN if K = 1."""
    repeats: int
    sequences: int
    tokens: int
    """N·T."""
    pool: int

    def share_of_depth(self, point: FrontierPoint) -> float:
        """speedup / (K / selected loops), 0.84 to 0.94 in the paper: below 1 because scoring exits takes time."""
        return point.speedup * point.selected_loops / self.loops


def frontier(
    model: Looped,
    calibration: Batches,
    evaluation: Batches,
    loops: int | None = None,
    *,
    scores: Sequence[str | Score] = ("margin", "state_change"),
    budgets: Sequence[float] = (PAPER_BUDGET,),
    pool: int = 1,
    repeats: int = 5,
    warmup: int = 1,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> Frontier:
    """Calibrate every score to every budget on some sequences, and time the rules on others.

    Args:
        calibration: pairs (tokens, targets), each (B, T) int64, unpadded (the paper: 160 sequences).
        evaluation: the same, from other text, in batches as they are to be run (the paper: of 8).
        loops: K; the trained loops when omitted.
        scores: names in `SCORES`, or `Score`s.
        budgets: ratios of dynamic to fixed perplexity.
        pool: as in `run_batches`.
        repeats, warmup, clock: as in `time_interleaved`.

    Raises:
        InputError: a score is unknown, a budget or `repeats` is below 1, or the batches are invalid.
    """
    pairs = batch_pairs(model, calibration)
    for name, many in (("scores", scores), ("budgets", budgets)):
        check_kind(name, many, Sequence, f"a sequence of {name}")
    rules = []
    for score in map(named, scores):
        table = exit_table(model, pairs, loops, score=score, seed=seed)
        rules += [Rule(score=score, threshold=calibrate(table, budget), budget=budget) for budget in budgets]
    return race(model, evaluation, rules, loops, pool=pool, repeats=repeats, warmup=warmup, seed=seed, clock=clock)


def race(
    model: Looped,
    batches: Batches,
    rules: Sequence[Rule],
    loops: int | None = None,
    *,
    pool: int = 1,
    repeats: int = 5,
    warmup: int = 1,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> Frontier:
    """Time calibrated rules, interleaved with every fixed depth. Arguments and errors are those of `frontier`."""
    pairs = batch_pairs(model, batches)
    for rule in rules:
        check_kind("a rule", rule, Rule, "a Rule(score=..., threshold=...)")
    loops = model.trained_loops if loops is None else loops
    fixed = range(1, loops + 1)
    jobs: list[Callable[[], DynamicRun]] = [partial(run_batches, model, pairs, k) for k in fixed]
    jobs += [
        partial(run_batches, model, pairs, loops, score=rule.score, threshold=rule.threshold, pool=pool)
        for rule in rules
    ]
    with untouched(model, seed):
        runs = [job() for job in jobs]
        rounds = time_interleaved(jobs, repeats=repeats, warmup=warmup, clock=clock, device=pairs[0][0].device)
    price = statistics.median(head_cost(seconds[:loops]) for seconds in rounds)
    points = [
        _point(run, rule, rounds, place, loops, price)
        for place, (run, rule) in enumerate(zip(runs, [*[None] * loops, *rules], strict=True))
    ]
    return Frontier(
        model=model.name,
        loops=loops,
        fixed=tuple(points[:loops]),
        halting=tuple(points[loops:]),
        head_cost=price,
        repeats=repeats,
        sequences=len(runs[0].exits),
        tokens=runs[0].tokens,
        pool=pool,
    )


def head_cost(seconds: Sequence[float]) -> float:
    """The cost h of a head product in loops, from the seconds of fixed depths 1..K: e/a of the line e + a·k through
    the first and the last, at least 0. NaN if K = 1, or if more loops took no more time."""
    K = len(seconds)
    if K < 2:
        return math.nan
    step = (seconds[-1] - seconds[0]) / (K - 1)
    return max(seconds[0] / step - 1, 0.0) if step > 0 else math.nan


def ideal_speedup(loops: int, price: float, run: DynamicRun) -> float:
    """The speed-up over `loops` loops and one head product that the counted work of `run` implies, if a head product
    costs as much as `price` loops."""
    return (loops + price) / (run.executed_loops + price * run.head_products)


def _point(
    run: DynamicRun, rule: Rule | None, rounds: list[list[float]], place: int, loops: int, price: float
) -> FrontierPoint:
    return FrontierPoint(
        score=None if rule is None else rule.score.name,
        threshold=None if rule is None else rule.threshold,
        budget=None if rule is None else rule.budget,
        selected_loops=run.selected_loops,
        executed_loops=run.executed_loops,
        head_products=run.head_products,
        loss=run.loss,
        tokens_per_second=run.tokens / statistics.median(seconds[place] for seconds in rounds),
        speedup=median_ratio(rounds, loops - 1, place),
        ideal=ideal_speedup(loops, price, run),
    )
