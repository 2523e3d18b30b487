"""The engine against a table of all exits, and on a clock that only the model's parts advance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.halting.calibration import calibrate, halt
from loopverify.halting.confidence import Arrival, HeadScore, Score, StateChange
from loopverify.halting.dynamic_batch import run_batches
from loopverify.halting.exit_table import exit_table
from loopverify.halting.frontier import Rule, frontier, race
from loopverify.halting.token_statistics import TokenStatistics

V = 13


def transformer(**changes: object) -> lv.Looped:
    config = lv.models.TransformerConfig(vocab_size=V, d_model=8, heads=2, d_ff=16, init_std=0.5, **changes)  # type: ignore[arg-type]
    return lv.models.LoopedTransformer(config).double().eval().looped()


def batches(rows: list[int], T: int = 6, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    made = [(torch.randint(V, (n, T), generator=draw), torch.randint(V, (n, T), generator=draw)) for n in rows]
    made[0][1][0, :3] = -100
    return made


class Planned(Score):
    """Sequence i leaves at exits[i]."""

    name = "planned"

    def __init__(self, exits: list[int]) -> None:
        self.exits = torch.tensor(exits)

    def confidence(self, at: Arrival, reading: TokenStatistics | None) -> Tensor:
        assert at.numbers is not None
        return (self.exits[at.numbers] == at.loop)[:, None].double()


@settings(max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=6, max_size=6), st.integers(1, 3), st.sampled_from(["all", "last"]))
def test_every_sequence_gets_the_exit_it_is_due_whatever_the_batches(exits: list[int], pool: int, decode: Any) -> None:
    model, data = transformer(readout="final_only"), batches([2, 3, 1])
    run = run_batches(model, data, score=Planned(exits), threshold=0.5, pool=pool, decode=decode)
    assert run.exits.tolist() == exits
    table = exit_table(model, data)
    if decode == "all":
        expected = table.losses.gather(1, torch.tensor(exits)[:, None] - 1)[:, 0]
        torch.testing.assert_close(run.losses, expected)
        assert run.loss == pytest.approx(float(expected.sum()) / (36 - 3))
        assert run.head_products == 1
    else:
        tokens, targets = (torch.cat(parts) for parts in zip(*data, strict=True))
        trace = lv.unroll(model, tokens)
        for row, k in enumerate(exits):
            expected = -trace.logits(k)[row, -1].log_softmax(-1)[targets[row, -1]]
            assert float(run.losses[row]) == pytest.approx(expected.item())
        assert run.head_products == pytest.approx(1 / 6)
    assert run.selected_loops == run.executed_loops == sum(exits) / 6


@pytest.mark.parametrize("score", [HeadScore(), HeadScore("negative_entropy"), StateChange()])
def test_decisions_and_losses_are_those_of_the_table(score: Score) -> None:
    model = transformer()
    data = batches([4, 4, 4])
    table = exit_table(model, data, score=score)
    for threshold in table.scores.flatten().quantile(torch.tensor([0.1, 0.5, 0.8]).double()).tolist():
        expected = halt(table, threshold)
        run = run_batches(model, data, score=score, threshold=threshold, pool=2)
        assert torch.bincount(run.exits - 1, minlength=4).tolist() == list(expected.exits)
        assert run.loss == pytest.approx(expected.loss)
        assert run.selected_loops == expected.average_loops
        # After a full score, sequences are decoded from its logits; the other score pays for decoding only.
        assert run.head_products == pytest.approx(expected.average_loops if score.wants else 1)


class Counting:
    """A model that notes how many sequences each call of its step and readout gets."""

    def __init__(self) -> None:
        self.steps, self.reads = list[tuple[int, int]](), Counter[int]()
        base = transformer()

        def step(state: Tensor, context: Any, loop: int) -> Tensor:
            self.steps.append((loop, len(state)))
            return base.step(state, context, loop)

        def readout(state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
            self.reads[loop] += state.shape[:2].numel()
            return base.readout(state, context, loop, loops)

        self.model = replace(base, step=step, readout=readout)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (1, [(1, 2), (2, 1), (3, 1), (1, 2), (2, 1), (3, 1)]),  # the rest of a batch continues alone
        (2, [(1, 2), (1, 2), (2, 2), (3, 2)]),  # the rests of two batches are merged
    ],
)
def test_left_over_sequences_of_several_batches_share_one(pool: int, expected: list[tuple[int, int]]) -> None:
    counting = Counting()
    run = run_batches(counting.model, batches([2, 2]), 3, score=Planned([1, 3, 3, 1]), threshold=0.5, pool=pool)
    assert counting.steps == expected
    # Each sequence is decoded at the exit taken only.
    assert counting.reads == {1: 2 * 6, 3: 2 * 6}
    assert run.executed_loops == run.selected_loops == 2


def test_batches_of_other_lengths_do_not_mix() -> None:
    data = [*batches([2, 2]), *batches([2], T=4)]
    run = run_batches(transformer(), data, score=Planned([1, 2, 3, 4, 1, 4]), threshold=0.5, pool=3)
    assert run.exits.tolist() == [1, 2, 3, 4, 1, 4]
    assert (run.tokens, run.counts.tolist()) == (
        32,
        [3, 6, 6, 6, 1, 4],
    )  # three targets are left out in the first row of each call


def test_the_context_of_who_stays_is_its_own() -> None:
    # Input injection: a context of other rows would show.
    model = lv.models.recurrences.input_injection()
    data = [(tokens % 11, targets % 11) for tokens, targets in batches([4])]
    run = run_batches(model, data, score=Planned([4, 1, 2, 4]), threshold=0.5)
    table = exit_table(model, data)
    expected = table.losses.gather(1, run.exits[:, None] - 1)[:, 0]
    torch.testing.assert_close(run.losses, expected, rtol=1e-6, atol=1e-6)


class Workshop:
    """A model of known costs on a clock: seconds a sequence for a loop and for a head product."""

    def __init__(self, step: float, product: float) -> None:
        self.now = 0.0
        base = transformer()

        def stepped(state: Tensor, context: Any, loop: int) -> Tensor:
            self.now += step * len(state)
            return base.step(state, context, loop)

        def read(state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
            self.now += product * state.shape[:2].numel() / 6
            return base.readout(state, context, loop, loops)

        self.model = replace(base, step=stepped, readout=read)


def test_an_engine_without_costs_of_its_own_reaches_the_ideal() -> None:
    shop = Workshop(step=1.0, product=0.4)
    plan = [1, 1, 2, 4]
    rules = [Rule(score=Planned(plan), threshold=0.5)]
    found = race(shop.model, batches([4]), rules, repeats=3, clock=lambda: shop.now)
    assert found.head_cost == pytest.approx(0.4)
    (point,) = found.halting
    assert (point.selected_loops, point.executed_loops, point.head_products) == (2, 2, 1)
    assert point.speedup == pytest.approx(4.4 / 2.4)
    assert point.ideal == pytest.approx(4.4 / 2.4)
    assert point.share_of_ideal == pytest.approx(1)
    assert found.share_of_depth(point) == pytest.approx(4.4 / 2.4 / 2)
    assert point.tokens_per_second == pytest.approx(24 / (4 * 2.4))
    assert [fixed.speedup for fixed in found.fixed] == pytest.approx([4.4 / (k + 0.4) for k in (1, 2, 3, 4)])
    assert [fixed.share_of_ideal for fixed in found.fixed] == pytest.approx([1] * 4)


def test_a_frontier_is_calibrated_on_other_sequences() -> None:
    model, fit, judged = transformer(), batches([8], seed=1), batches([4, 4], seed=2)
    found = frontier(model, fit, judged, scores=("margin",), budgets=(1.0, 1.2), repeats=1, warmup=0)
    table = exit_table(model, fit)
    assert [point.threshold for point in found.halting] == [calibrate(table, 1.0), calibrate(table, 1.2)]
    for point in found.halting:
        assert point.threshold is not None
        expected = halt(exit_table(model, judged), point.threshold)
        assert point.perplexity == pytest.approx(expected.dynamic_perplexity)
        assert point.selected_loops == expected.average_loops
    assert [point.loss for point in found.fixed] == pytest.approx(exit_table(model, judged).exit_losses)
    assert (found.sequences, found.tokens, found.loops) == (8, 48, 4)


MODEL = transformer()
ONE = batches([1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: run_batches(MODEL, ONE, pool=0), "pool is 0; expected an integer >= 1, the batches in flight"),
        (
            lambda: run_batches(MODEL, ONE, pool=1.5),
            "pool is 1.5; expected an integer >= 1, the batches in flight",
        ),
        (lambda: run_batches(MODEL, ONE, decode="some"), "unknown tokens to decode 'some'; expected one of: all, last"),
        (lambda: run_batches(MODEL, ONE, 0), "loops is 0; expected an integer >= 1"),
        (
            lambda: run_batches(MODEL, ONE, score="margin"),
            "score is 'margin'; expected a Score, or None for fixed depth",
        ),
        (
            lambda: run_batches(MODEL, ONE, threshold="a"),
            "threshold is 'a'; expected a mean confidence that an exit has",
        ),
        (lambda: run_batches(MODEL.module, ONE), r"got a LoopedTransformer to measure; expected a loopverify\.Looped"),
        (lambda: run_batches(MODEL, []), "no batches; expected at least one pair"),
        (
            lambda: run_batches(MODEL, [(ONE[0][0] + V, ONE[0][1])]),
            rf"tokens span \d+\.\.\d+; expected 0\.\.{V - 1} for a vocabulary of {V}",
        ),
        (lambda: frontier(MODEL, ONE, ONE, scores=("vibes",)), "unknown halting score 'vibes'"),
        (lambda: frontier(MODEL, ONE, ONE, scores=3), "scores is 3; expected a sequence of scores"),
        (lambda: frontier(MODEL, ONE, ONE, budgets=1.01), "budgets is 1.01; expected a sequence of budgets"),
        (lambda: frontier(MODEL, ONE, ONE, repeats=1.5), "repeats is 1.5; expected an integer >= 1"),
        (
            lambda: race(MODEL, ONE, ["margin"]),
            r"a rule is 'margin'; expected a Rule\(score=\.\.\., threshold=\.\.\.\)",
        ),
    ],
)
def test_refusals(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        wrong()
