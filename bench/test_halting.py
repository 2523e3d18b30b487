"""Halting on the clock: sequences that leave early, against a run of fixed depth that decodes its last exit only.

The weights are random and so is nothing else: which sequence leaves where is planted, so that the average depth is 1, 2
or 3 of 4, while the score is computed and paid for. *Ideal by counted work* is the time that the counted loops and head
products would take, a head product at its price in loops (see `loopverify.halting.frontier`): by multiplications, which
has no noise, and as the fixed runs of the same rounds have it.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.contest import Contest, Ratio
from bench.shapes import Shape
from loopverify.halting.confidence import Arrival, HeadScore, Score, StateChange
from loopverify.halting.dynamic_batch import run_batches
from loopverify.halting.frontier import head_cost, ideal_speedup
from loopverify.halting.low_rank import LowRankMargin
from loopverify.halting.token_statistics import TokenStatistics, linear_head
from loopverify.looped import Looped

BATCHES, ROWS, TOKENS = 2, 8, 64
LEAST_SHARE = 0.95
"""Smallest fraction of the ideal speed-up."""
PLANS = {1: (1,) * 8, 2: (1, 1, 1, 1, 2, 3, 3, 4), 3: (1, 2, 2, 3, 4, 4, 4, 4)}
"""Exits of eight sequences, by their mean exit."""
CASES = [(score, depth) for score in ("margin", "state_change") for depth in PLANS] + [
    ("margin/8", 2),
    ("margin~64", 2),
]


class Planted(Score):
    """A score that is computed, and then overruled: sequence i leaves at exits[i]."""

    def __init__(self, score: Score, exits: Tensor) -> None:
        self.name, self.wants, self._score, self._exits = score.name, score.wants, score, exits

    def confidence(self, at: Arrival, reading: TokenStatistics | None) -> Tensor:
        return self._score.confidence(at, reading)

    def leaves(self, at: Arrival, threshold: float) -> tuple[Tensor, TokenStatistics | None]:
        _, reading = self._score.leaves(at, threshold)
        return self._exits[at.numbers] == at.loop, reading


def _score(name: str, model: Looped) -> Score:
    head = linear_head(model)
    assert head is not None
    rank = min(64, head.weight.shape[1])
    made: dict[str, Score] = {
        "margin": HeadScore(),
        "margin/8": HeadScore(every=8),
        "margin~64": LowRankMargin(head, rank),
        "state_change": StateChange(),
    }
    return made[name]


def _exits(depth: int, device: str) -> Tensor:
    """Each sequence's exit, in an order that leaves batches with different numbers of survivors."""
    exits = torch.tensor(PLANS[depth] * (BATCHES * ROWS // 8))
    return exits[torch.randperm(len(exits), generator=torch.Generator().manual_seed(0))].to(device)


@pytest.mark.parametrize(("score", "depth"), CASES)
def test_halting(contest: Contest, large: Shape, device: str, score: str, depth: int, quick: bool) -> None:
    model, K = large.module("rmsnorm", device).eval().looped(), large.preset.loops
    T = 8 if quick else TOKENS
    tokens = torch.randint(large.vocab_size, (2, BATCHES, ROWS, T), generator=torch.Generator().manual_seed(1))
    batches = list(zip(*tokens.to(device), strict=True))
    run = partial(run_batches, model, batches, score=Planted(_score(score, model), _exits(depth, device)), pool=BATCHES)
    work = run()
    assert work.selected_loops == work.executed_loops == depth
    fixed = {f"fixed depth {k}": partial(run_batches, model, batches, k) for k in (K, 1)}
    to_deepest, to_first = contest(
        run,
        fixed,
        label=f"halting by {score}, {depth} of {K} loops on average, {work.head_products:.3g} head products per token",
        shape=f"{large.preset.name}: {BATCHES} × {ROWS} × {T} tokens, V = {large.vocab_size:,}",
        rounds=large.rounds,
    )
    measured = head_cost([to_deepest.median / to_first.median, *[float("nan")] * (K - 2), 1.0])
    contest.benchmark.extra_info["ratios"] += [
        _share(to_deepest, ideal_speedup(K, _multiplications(model, batches[0][0]), work), "multiplications", True),
        _share(to_deepest, ideal_speedup(K, measured, work), "the price of a head in these rounds", False),
    ]


def _multiplications(model: Looped, tokens: Tensor) -> float:
    """Multiplications of a head product relative to those of a loop."""
    counts = []
    state, context = model.embed(tokens)
    for part in (lambda: model.readout(state, context, 1, 1), lambda: model.step(state, context, 1)):
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # the fused ones are not counted
            part()
        counts.append(counter.get_total_flops())
    return counts[0] / counts[1]


def _share(to_deepest: Ratio, ideal: float, how: str, judged: bool) -> dict[str, object]:
    """The time relative to that of the ideal speed-up."""
    return asdict(
        Ratio(
            peer=f"ideal by counted work, by {how} (×{ideal:.2f})",
            median=to_deepest.median * ideal,
            low=to_deepest.low * ideal,
            high=to_deepest.high * ideal,
            at_most=1 / LEAST_SHARE if judged else None,
        )
    )
