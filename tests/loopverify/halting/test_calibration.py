"""Halting decisions against the rule written out in Python, at every threshold that matters."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.halting.calibration import calibrate, halt, halting
from loopverify.halting.confidence import HeadScore
from loopverify.halting.exit_table import SCORES, ExitTable, exit_table
from loopverify.measures.held_out import Sample
from tests.loopverify.closed_form import TARGETS, TOKENS, looped, radial_step, raw, rms, rmsnorm

BATCHES = [(TOKENS, TARGETS)]


def table(scores: list[list[float]], losses: list[list[float]], tokens: int = 1) -> ExitTable:
    """A made-up table of sequences of `tokens` tokens each, losses per token."""
    N, K = len(scores), len(scores[0])
    sample = Sample(
        model="made up",
        trained_loops=K,
        loops=K,
        sequences=N,
        counts=(N * tokens,),
        dtype="float64",
        device="cpu",
        seed=0,
        versions={},
    )
    c, L = (torch.tensor(x, dtype=torch.float64) for x in (scores, losses))
    return ExitTable(score="margin", scores=c, losses=tokens * L, sample=sample)


def by_hand(made: ExitTable, threshold: float) -> tuple[list[int], float]:
    """The exit of every sequence and the loss of all, nats per token: the smallest k with c_k > τ, else K."""
    exits = [next((k for k, c in enumerate(row, 1) if c > threshold), len(row)) for row in made.scores.tolist()]
    total = math.fsum(row[k - 1] for row, k in zip(made.losses.tolist(), exits, strict=True))
    return exits, total / made.sample.tokens


def test_sequences_leave_at_the_first_score_above_the_threshold() -> None:
    made = table(
        [[1.0, 3.0, 2.0], [2.0, 2.0, 9.0], [4.0, 0.0, 0.0]], [[5.0, 3.0, 1.0], [6.0, 4.0, 2.0], [1.0, 1.0, 1.0]]
    )
    run = halt(made, 2.0)  # not above: the second sequence runs on at scores of 2
    assert run.exits == (1, 1, 1)
    assert run.loss == pytest.approx((3 + 2 + 1) / 3)
    assert run.average_loops == 2
    assert run.ideal_speedup == 1.5
    assert run.exit_losses == pytest.approx((4, 8 / 3, 4 / 3))
    assert run.depth_use == pytest.approx(8 / 3)
    assert run.dynamic_perplexity == pytest.approx(math.exp(2))
    assert run.fixed_perplexity == pytest.approx(math.exp(4 / 3))
    # One sequence each at exits of mean loss 4, 8/3 and 4/3: chosen at random they would cost 8/3.
    assert run.uninformed_loss == pytest.approx(8 / 3)
    assert run.loss < run.uninformed_loss


@pytest.mark.parametrize("seed", range(20))
def test_the_threshold_is_the_smallest_that_meets_the_budget(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randint(6, (12, 4), generator=draw).double()  # ties everywhere
    losses = torch.randn(12, 4, generator=draw).double().cumsum(1).flip(1) + 5
    made = table(scores.tolist(), losses.tolist(), tokens=3)
    full = float(made.losses[:, -1].sum()) / made.sample.tokens
    for budget in (1.0, 1.2, 2.0):
        # Thresholds between all scores, at them and below them.
        candidates = [-math.inf, *(x / 2 for x in range(-1, 13))]
        expected = next(t for t in candidates if by_hand(made, t)[1] <= full + math.log(budget) + 1e-12)
        found = calibrate(made, budget)
        assert by_hand(made, found)[0] == by_hand(made, expected)[0]
        assert found <= expected
        run = halt(made, found)
        assert run.loss == pytest.approx(by_hand(made, found)[1])
        assert run.exits == tuple(by_hand(made, found)[0].count(k) for k in (1, 2, 3, 4))


def test_a_budget_of_one_allows_what_does_not_cost() -> None:
    made = table([[5.0, 9.0], [1.0, 9.0]], [[1.0, 1.0], [3.0, 2.0]])
    assert calibrate(made, 1.0) == 1.0  # only the sequence that gains nothing leaves
    assert halt(made, 1.0).exits == (1, 1)


def test_full_depth_meets_any_budget_whatever_its_sum_rounds_to() -> None:
    # In float64, 1e16 + (3 − 1e16) is 4: more than the 3 nats of full depth.
    made = table([[1.0, 0.0]], [[1e16, 3.0]])
    assert calibrate(made, 1.0) == 1.0


def test_scores_that_know_nothing_leave_no_one_early() -> None:
    # The surer a sequence is, the more it loses: no threshold but the largest keeps the budget.
    made = table([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], [[2.0, 1.0], [3.0, 1.0], [4.0, 1.0]])
    run = halt(made, calibrate(made))
    assert run.exits == (0, 3)
    assert run.ideal_speedup == 1


def test_a_score_that_is_not_a_number_makes_nobody_leave() -> None:
    made = table([[math.nan, 1.0, 0.0], [2.0, 2.0, 0.0]], [[1.0, 1.0, 1.0]] * 2)
    assert halt(made, -math.inf).exits == (1, 1, 0)
    assert halt(made, calibrate(made)).exits == (1, 1, 0)


def test_a_single_loop_leaves_nothing_to_decide() -> None:
    made = table([[1.0], [2.0]], [[1.0], [3.0]])
    assert halt(made, calibrate(made)).exits == (2,)


def test_a_k_invariant_model_does_not_look_like_a_success() -> None:
    # Table 13, RMSNorm: one loop on average and the largest speed-up, of a model that has no use for more.
    found = halting(looped(radial_step(1.0, 50.0), rmsnorm), BATCHES, BATCHES)
    assert found.threshold == -math.inf
    assert found.evaluation.exits == (2, 0, 0, 0)
    assert found.evaluation.ideal_speedup == 4
    assert found.evaluation.depth_use == pytest.approx(0, abs=1e-12)
    assert found.depth_unused
    assert "depth use CE(1) − CE(K) = +0.0000 nats" in str(found).replace("-0.0000", "+0.0000")
    assert str(found).endswith("not an achievement of halting, loop 1 alone is within the budget of ×1.01")


def sharpening(easy: float, hard: float) -> lv.Looped:
    """Two logits, (rate·k, 0) at loop k: sequences of token 0 sharpen by `easy` a loop, of token 1 by `hard`."""
    rates = torch.tensor([easy, hard], dtype=torch.float64)

    def embed(tokens: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(*tokens.shape, 2, dtype=torch.float64), rates[tokens][..., None]

    return lv.Looped(
        embed=embed,
        step=lambda H, rate, loop: H + torch.cat([rate, 0 * rate], -1),
        readout=lambda H, *_: H,
        trained_loops=4,
        name="sharpening",
    )


def surprise(margin: float) -> float:
    """CE of two logits (margin, 0) when the first is right."""
    return math.log1p(math.exp(-margin))


def test_easy_sequences_leave_early() -> None:
    tokens = torch.tensor([[0, 0, 0], [1, 1, 1]])
    batches = [(tokens, torch.zeros_like(tokens))]
    found = halting(sharpening(8.0, 0.5), batches, batches)
    # Scores 8, 16, ... and 0.5, 1, 1.5, 2: a loss of e⁻⁸ nats is within 1 %; the hard sequence needs all its loops.
    assert found.threshold == 1.5
    assert found.evaluation.exits == (1, 0, 0, 1)
    assert found.evaluation.average_loops == 2.5
    assert found.evaluation.ideal_speedup == 1.6
    assert found.evaluation.loss == pytest.approx((surprise(8) + surprise(2)) / 2)
    assert found.evaluation.depth_use == pytest.approx((surprise(8) + surprise(0.5) - surprise(32) - surprise(2)) / 2)
    assert (found.depth_unused, found.within_budget) == (False, True)
    assert str(found).startswith("2.50 of 4 loops (ideal speed-up ×1.60), perplexity 1.066 against 1.066 at full depth")
    assert str(found).endswith(f"depth use CE(1) − CE(K) = +{found.evaluation.depth_use:.4f} nats per token")
    assert found.evaluation.sample.sequences == 2


def test_the_budget_is_judged_on_other_sequences() -> None:
    easy, hard = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64)
    # Calibrated where exits cost nothing, evaluated where wrong targets make every loop but the last cheaper to skip.
    found = halting(sharpening(8.0, 0.5), [(easy, torch.zeros_like(easy))], [(hard, torch.zeros_like(hard))])
    assert found.threshold == -math.inf
    assert found.evaluation.exits == (2, 0, 0, 0)
    assert not found.within_budget
    assert not found.depth_unused
    assert str(found).endswith("exceeds the budget of ×1.01 on new sequences")


def test_table_and_scores_against_definitions() -> None:
    config = lv.models.TransformerConfig(vocab_size=5, d_model=8, d_ff=16, readout="final_only", init_std=0.5)
    model = lv.models.LoopedTransformer(config).double().looped()
    few = TARGETS.clone()
    few[0, 1:] = -100
    trace = lv.unroll(model, TOKENS)
    batches = [(TOKENS[:1], few[:1]), (TOKENS[1:], few[1:])]
    tables = {score: exit_table(model, batches, score=score) for score in SCORES}
    for k in range(1, 5):
        logits, (before, after) = trace.logits(k).detach(), trace.states[k - 1 : k + 1]
        top = logits.sort(-1).values
        p = torch.distributions.Categorical(logits=logits)
        expected = {
            "margin": top[..., -1] - top[..., -2],
            "max_probability": p.probs.amax(-1),
            "negative_entropy": -p.entropy(),
            "state_change": -(rms(after - before) / rms(after))[..., 0].detach(),
        }
        for score, made in tables.items():
            assert made.scores[:, k - 1].tolist() == pytest.approx(expected[score].mean(-1).tolist()), score
            # Exits of one run, as in the paper: those of a final-only model are raw but for the last.
            losses = F.cross_entropy(logits.flatten(0, 1), few.flatten(), reduction="none").view(2, 4).sum(-1)
            assert made.losses[:, k - 1].tolist() == pytest.approx(losses.tolist())
    assert tables["margin"].loops == 4
    assert tables["margin"].exit_losses == pytest.approx((tables["margin"].losses.sum(0) / 5).tolist())


def test_a_state_that_stands_still_is_as_sure_as_can_be() -> None:
    made = exit_table(looped(lambda H: H.clone(), raw, start=0.0), BATCHES, score="state_change")
    assert made.scores.tolist() == [[0.0] * 4] * 2


MODEL = looped(lambda H: 2 * H)
TABLE = table([[1.0]], [[1.0]])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: halting(MODEL, BATCHES, BATCHES, score="vibes"),
            "unknown halting score 'vibes'; expected one of: marg",
        ),
        (
            lambda: exit_table(MODEL, BATCHES, score=["margin"]),
            r"unknown halting score \['margin'\]; expected one of: ",
        ),
        (lambda: exit_table(MODEL, None), r"batches is None; expected pairs of tensors \(tokens, targets\)"),
        (lambda: exit_table(MODEL, BATCHES, 2.5), "loops is 2.5; expected an integer >= 1"),
        (
            lambda: exit_table(MODEL, BATCHES, by="page"),
            "unknown unit of halting 'page'; expected one of: sequence, tok",
        ),
        (lambda: exit_table(MODEL, BATCHES, seed="a"), "seed is 'a'; expected an integer >= 0"),
        (
            lambda: exit_table(MODEL, BATCHES, score=HeadScore(every=2), by="token"),
            "score 'margin/2' uses 2 of 4 tokens; expected one that uses every token, so that each can leave",
        ),
        (lambda: calibrate(None), r"table is None; expected an ExitTable, as exit_table\(model, batches\) returns"),
        (lambda: halt(3, 1.0), "table is 3; expected an ExitTable"),
        (lambda: halt(TABLE, math.nan), "threshold is nan; expected a score that an exit has to exceed"),
        (lambda: halt(TABLE, "1"), "threshold is '1'; expected a score that an exit has to exceed"),
        (
            lambda: halting(MODEL, BATCHES, BATCHES, budget="x"),
            "budget is 'x'; expected a ratio of dynamic to fixed perplexity",
        ),
        *(
            (
                partial(calibrate, TABLE, budget),
                f"budget is {budget}; expected a ratio of dynamic to fixed perplexity >= 1",
            )
            for budget in (0.99, math.inf, math.nan, None, True)
        ),
    ],
)
def test_refusals(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        wrong()
