"""Sequence-level halting: by a confidence score, with a threshold calibrated to a perplexity budget (Sharma & Vu 2026,
appendix 17, Table 13).

A sequence leaves at the smallest loop k whose score c_k exceeds a threshold; one that never does runs all K loops. One
pass of K loops scores every exit of every sequence (`exit_table`); calibration and evaluation are arithmetic on that
table. What is measured is the decision. Its speed-up is the ideal one, K over the loops taken; what an engine makes of
it, with sequences that leave their batch, is measured by `frontier`.

Differences from the paper: the threshold is the smallest of all real numbers that meets the budget, not of a grid (the
perplexity only changes at scores of the table, so that these are all there is to try); and a halting rule is shown
beside what its speed-up is worth: a model whose exits are all alike halts early without needing to know when.

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
"""Dynamic perplexity over that of all loops."""


@dataclass(frozen=True, kw_only=True)
class HaltingRun:
    """What one threshold does to one set of sequences."""

    threshold: float
    """τ; −inf lets every sequence leave at loop 1."""
    exits: tuple[int, ...]
    """How many sequences leave at loops 1..K."""
    loss: float
    """Cross-entropy of the exits taken, nats a token."""
    exit_losses: tuple[float, ...]
    """Cross-entropy of the exits 1..K, each taken by all, nats a token; the last is fixed depth."""
    sample: Sample

    @property
    def dynamic_perplexity(self) -> float:
        """exp(loss)."""
        return perplexity(self.loss)

    @property
    def fixed_perplexity(self) -> float:
        """Of running all loops."""
        return perplexity(self.exit_losses[-1])

    @property
    def average_loops(self) -> float:
        """Loops a sequence takes."""
        return sum(k * count for k, count in enumerate(self.exits, start=1)) / sum(self.exits)

    @property
    def ideal_speedup(self) -> float:
        """K over average loops: what halting could save if nothing but loops took time."""
        return len(self.exits) / self.average_loops

    @property
    def depth_use(self) -> float:
        """CE(1) − CE(K), nats a token: what the loops that a sequence may skip are worth."""
        return self.exit_losses[0] - self.exit_losses[-1]

    @property
    def uninformed_loss(self) -> float:
        """Cross-entropy, nats a token, of as many sequences at each exit but chosen at random. `loss` is below it only
        if the score knows which sequences can leave."""
        shares = (count / sum(self.exits) for count in self.exits)
        return math.fsum(share * loss for share, loss in zip(shares, self.exit_losses, strict=True) if share)


@dataclass(frozen=True, kw_only=True)
class Halting:
    """A halting rule, calibrated on some sequences and judged on others."""

    score: str
    budget: float
    """Largest allowed dynamic over fixed perplexity, in calibration."""
    calibration: HaltingRun
    evaluation: HaltingRun

    @property
    def threshold(self) -> float:
        """τ."""
        return self.calibration.threshold

    @property
    def depth_unused(self) -> bool:
        """Whether leaving after loop 1 without looking would meet the budget (the paper's K-invariant model): then a
        speed-up says that the model does not use its loops, not that the rule finds the right one."""
        return self.evaluation.depth_use <= math.log(self.budget)

    @property
    def within_budget(self) -> bool:
        """Whether the budget holds on the sequences that it was not calibrated on."""
        return self.evaluation.loss - self.evaluation.exit_losses[-1] <= math.log(self.budget)

    def __str__(self) -> str:
        run = self.evaluation
        text = (
            f"{run.average_loops:.2f} of {len(run.exits)} loops (ideal speed-up ×{run.ideal_speedup:.2f}), perplexity "
            f"{run.dynamic_perplexity:.4g} against {run.fixed_perplexity:.4g} at full depth, depth use CE(1) − CE(K) = "
            f"{run.depth_use:+.4f} nats"
        )
        if self.depth_unused:
            return f"{text}: no success of halting, loop 1 alone is within the budget of ×{self.budget:g}"
        return text if self.within_budget else f"{text}: over the budget of ×{self.budget:g} on new sequences"


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
        evaluation: the same, of other text.
        loops: K; the trained loops when omitted.
        score: a name of `SCORES`, or a score of `halting.confidence`.
        budget: dynamic over fixed perplexity, at least 1.

    Raises:
        InputError: an unknown score, a budget below 1, or bad batches.
    """
    _check_budget(budget)
    fit = exit_table(model, calibration, loops, score=score, seed=seed)
    threshold = calibrate(fit, budget)
    judged = exit_table(model, evaluation, loops, score=score, seed=seed)
    return Halting(score=fit.score, budget=budget, calibration=halt(fit, threshold), evaluation=halt(judged, threshold))


def calibrate(table: ExitTable, budget: float = PAPER_BUDGET) -> float:
    """The smallest threshold whose dynamic perplexity is at most `budget` times that of full depth; −inf if every
    sequence may leave at loop 1.

    Raises:
        InputError: not an ExitTable, or a budget below 1.
    """
    _check_table(table)
    _check_budget(budget)
    # A sequence is still there after loop k while max(c_1..c_k) <= τ, so that this is where it trades L_k for L_{k+1}.
    tips, order = _tips(table)[:, :-1].flatten().sort()
    trades = (table.losses[:, 1:] - table.losses[:, :-1]).flatten()[order]
    totals = table.losses[:, 0].sum() + torch.cat([trades.new_zeros(1), trades.cumsum(0)])
    candidates = torch.cat([tips.new_tensor([-math.inf]), tips])
    reached = totals[torch.searchsorted(tips, candidates, right=True)]
    allowed = float(table.losses[:, -1].sum()) + math.log(budget) * table.sample.tokens
    within = reached <= allowed
    within[-1] = True  # full depth, whatever its sum rounds to
    return float(candidates[within.int().argmax()])


def halt(table: ExitTable, threshold: float) -> HaltingRun:
    """Let every sequence of a table leave at its first exit with a score above `threshold`.

    Raises:
        InputError: not an ExitTable, or a threshold that is no number.
    """
    _check_table(table)
    check_number("threshold", threshold, "a score that an exit has to be above")
    left = _tips(table) > threshold
    left[:, -1] = True
    taken = left.int().argmax(1, keepdim=True)
    return HaltingRun(
        threshold=threshold,
        exits=tuple(torch.bincount(taken.flatten(), minlength=table.loops).tolist()),
        loss=float(table.losses.gather(1, taken).sum()) / table.sample.tokens,
        exit_losses=table.exit_losses,
        sample=table.sample,
    )


def _tips(table: ExitTable) -> Tensor:
    """max(c_1..c_k), (N, K). A score that is not a number makes nobody leave."""
    return table.scores.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).cummax(1).values


def _check_table(table: ExitTable) -> None:
    check_kind("table", table, ExitTable, "an ExitTable, as exit_table(model, batches) makes it")


def _check_budget(budget: float) -> None:
    expected = "dynamic over fixed perplexity, 1 or more (1.01 allows 1 %)"
    check_number("budget", budget, expected, lambda ratio: 1 <= ratio < math.inf)
