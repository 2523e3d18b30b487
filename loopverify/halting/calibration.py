"""Sequence-level halting by a confidence score, with a threshold calibrated to a perplexity budget (Sharma & Vu 2026,
appendix 17, Table 13).

A sequence leaves at the first loop k whose score c_k exceeds a threshold; a sequence that never does runs all K loops.
One pass of K loops scores every exit of every sequence (`exit_table`); calibration and evaluation are arithmetic on
that table. They measure the decision, and its speed-up is the ideal one, K over the loops taken. The speed-up of an
engine in which sequences leave their batch is measured by `frontier`.

Differences from the paper: the threshold is the smallest real number that meets the budget, not the best of a grid (the
perplexity changes at scores of the table only, so that no other thresholds need to be tried); and the record says
whether the speed-up is an achievement: a model whose exits are all alike halts early whatever the score says.

Shapes: N sequences, K loops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.arguments import check_kind, check_number
from loopverify.halting.confidence import Score
from loopverify.halting.exit_table import ExitTable, exit_table
from loopverify.looped import Looped
from loopverify.measures.held_out import Batches, Sample, perplexity

__all__ = ["PAPER_BUDGET", "Halting", "HaltingRun", "calibrate", "halt", "halting"]

PAPER_BUDGET = 1.01
"""Largest dynamic perplexity, relative to that of running all loops."""


@dataclass(frozen=True, kw_only=True)
class HaltingRun:
    """The effect of one threshold on one set of sequences."""

    threshold: float
    """τ; −inf lets every sequence leave at loop 1."""
    exits: tuple[int, ...]
    """Number of sequences that leave at each loop 1..K."""
    loss: float
    """Cross-entropy of the exits taken, nats per token."""
    exit_losses: tuple[float, ...]
    """Cross-entropies of the exits 1..K over all sequences, nats per token; the last is that of fixed depth."""
    sample: Sample

    @property
    def dynamic_perplexity(self) -> float:
        """exp(loss)."""
        return perplexity(self.loss)

    @property
    def fixed_perplexity(self) -> float:
        """Perplexity of running all loops."""
        return perplexity(self.exit_losses[-1])

    @property
    def average_loops(self) -> float:
        """Mean number of loops per sequence."""
        return sum(k * count for k, count in enumerate(self.exits, start=1)) / sum(self.exits)

    @property
    def ideal_speedup(self) -> float:
        """K over average loops: the speed-up if nothing but loops took time."""
        return len(self.exits) / self.average_loops

    @property
    def depth_use(self) -> float:
        """CE(1) − CE(K), nats per token: what the loops that a sequence may skip are worth."""
        return self.exit_losses[0] - self.exit_losses[-1]

    @property
    def uninformed_loss(self) -> float:
        """Cross-entropy, nats per token, if as many sequences left at each exit, but chosen at random. `loss` is below
        it only if the score recognizes which sequences can leave."""
        shares = (count / sum(self.exits) for count in self.exits)
        return math.fsum(share * loss for share, loss in zip(shares, self.exit_losses, strict=True) if share)


@dataclass(frozen=True, kw_only=True)
class Halting:
    """A halting rule, calibrated on some sequences and evaluated on others."""

    score: str
    budget: float
    """Largest allowed ratio of dynamic to fixed perplexity, in calibration."""
    calibration: HaltingRun
    evaluation: HaltingRun

    @property
    def threshold(self) -> float:
        """τ."""
        return self.calibration.threshold

    @property
    def depth_unused(self) -> bool:
        """Whether the budget would be met if every sequence left after loop 1 (the paper's K-invariant model). Then
        a speed-up shows that the model does not use its loops, not that the rule finds the right one."""
        return self.evaluation.depth_use <= math.log(self.budget)

    @property
    def within_budget(self) -> bool:
        """Whether the budget holds on the evaluation sequences."""
        return self.evaluation.loss - self.evaluation.exit_losses[-1] <= math.log(self.budget)

    def __str__(self) -> str:
        run = self.evaluation
        text = (
            f"{run.average_loops:.2f} of {len(run.exits)} loops (ideal speed-up ×{run.ideal_speedup:.2f}), perplexity "
            f"{run.dynamic_perplexity:.4g} against {run.fixed_perplexity:.4g} at full depth, depth use CE(1) − CE(K) = "
            f"{run.depth_use:+.4f} nats per token"
        )
        if self.depth_unused:
            return f"{text}: not an achievement of halting, loop 1 alone is within the budget of ×{self.budget:g}"
        return text if self.within_budget else f"{text}: exceeds the budget of ×{self.budget:g} on new sequences"


def halting(
    model: Looped,
    calibration: Batches,
    evaluation: Batches,
    loops: int | None = None,
    *,
    score: str | Score = "margin",
    budget: float = PAPER_BUDGET,
    seed: int = 0,
) -> Halting:
    """Calibrate a halting threshold on some sequences and measure it on others (Table 13: 160 and another 160).

    Args:
        calibration: pairs (tokens, targets), each (B, T) int64, unpadded: a score is a mean over all T tokens.
        evaluation: the same, from other text.
        loops: K; the trained loops when omitted.
        score: a name in `SCORES`, or a `Score`.
        budget: ratio of dynamic to fixed perplexity, at least 1.

    Raises:
        InputError: the score is unknown, the budget is below 1, or the batches are invalid.
    """
    _check_budget(budget)
    fit = exit_table(model, calibration, loops, score=score, seed=seed)
    threshold = calibrate(fit, budget)
    judged = exit_table(model, evaluation, loops, score=score, seed=seed)
    return Halting(score=fit.score, budget=budget, calibration=halt(fit, threshold), evaluation=halt(judged, threshold))


def calibrate(table: ExitTable, budget: float = PAPER_BUDGET) -> float:
    """The smallest threshold whose dynamic perplexity is at most `budget` times that of full depth; −inf if every
    sequence may leave at loop 1.

    Sequence i is still running after loop k exactly if τ >= m_k = max(c_1..c_k). So raising τ past m_k exchanges its
    loss at exit k for that at exit k + 1, and the total loss as a function of τ is L_1 plus the sum of these exchanges
    over all m_k <= τ: one sort and one cumulative sum give it at every threshold that matters. The total need not fall
    with τ, since later exits may be worse, so the first candidate within the budget is searched, not bisected.

    Raises:
        InputError: `table` is not an ExitTable, or the budget is below 1.
    """
    _check_table(table)
    _check_budget(budget)
    maxima, order = _running_maxima(table)[:, :-1].flatten().sort()
    exchanges = (table.losses[:, 1:] - table.losses[:, :-1]).flatten()[order]
    totals = table.losses[:, 0].sum() + torch.cat([exchanges.new_zeros(1), exchanges.cumsum(0)])
    candidates = torch.cat([maxima.new_tensor([-math.inf]), maxima])
    # right=True: with ties, all exchanges at this threshold count.
    reached = totals[torch.searchsorted(maxima, candidates, right=True)]
    allowed = float(table.losses[:, -1].sum()) + math.log(budget) * table.sample.tokens
    within = reached <= allowed
    within[-1] = True  # full depth meets any budget, even if its sum rounds to more
    return float(candidates[within.int().argmax()])


def halt(table: ExitTable, threshold: float) -> HaltingRun:
    """Let every sequence of a table leave at its first exit with a score above `threshold`.

    Raises:
        InputError: `table` is not an ExitTable, or the threshold is not a number.
    """
    _check_table(table)
    check_number("threshold", threshold, "a score that an exit has to exceed")
    left = _running_maxima(table) > threshold
    left[:, -1] = True
    taken = left.int().argmax(1, keepdim=True)
    return HaltingRun(
        threshold=threshold,
        exits=tuple(torch.bincount(taken.flatten(), minlength=table.loops).tolist()),
        loss=float(table.losses.gather(1, taken).sum()) / table.sample.tokens,
        exit_losses=table.exit_losses,
        sample=table.sample,
    )


def _running_maxima(table: ExitTable) -> Tensor:
    """max(c_1..c_k), (N, K). NaN counts as −inf: it lets no sequence leave."""
    return table.scores.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).cummax(1).values


def _check_table(table: ExitTable) -> None:
    check_kind("table", table, ExitTable, "an ExitTable, as exit_table(model, batches) returns")


def _check_budget(budget: float) -> None:
    expected = "a ratio of dynamic to fixed perplexity >= 1 (1.01 allows 1 %)"
    check_number("budget", budget, expected, lambda ratio: 1 <= ratio < math.inf)
