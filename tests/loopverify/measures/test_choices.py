"""Continuation likelihoods against a bigram model, whose likelihoods are the entries of its table."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

import loopverify as lv
from loopverify.errors import InputError
from loopverify.measures.choices import Answer, score_choices
from loopverify.measures.questions import Question

# P[a, b]: the probability of b after a.
P = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)


def bigram(loops: int = 1) -> lv.Looped:
    """Logits of exit k of a run of K are k/K·log P: right at the last exit, too flat at earlier ones."""
    return lv.Looped(
        embed=lambda tokens: (torch.nn.functional.one_hot(tokens, 3).double(), None),
        step=lambda H, context, loop: H.clone(),
        readout=lambda H, context, loop, loops: loop / loops * (H @ P.log()),
        trained_loops=loops,
        name="bigram",
        vocab_size=3,
    )


QUESTIONS = (
    Question(context=(0,), choices=((1,), (2, 2)), gold=0, task="a"),
    Question(context=(1, 2), choices=((2, 2, 2), (0,), (1,)), gold=0, task="a"),
    Question(context=(2, 0), choices=((1, 1), (1,)), gold=1, task="b"),
)
# Written out: log P of each token after the one before it.
NLLS = [
    (-math.log(0.25), -math.log(0.25 * 0.6)),
    (-math.log(0.6**3), -math.log(0.2), -math.log(0.2)),
    (-math.log(0.25 * 0.8), -math.log(0.25)),
]


def test_likelihoods_are_those_of_the_table() -> None:
    scores = score_choices(bigram(), QUESTIONS)
    assert [answer.nlls for answer in scores.answers] == [pytest.approx(nlls) for nlls in NLLS]
    assert [answer.lengths for answer in scores.answers] == [(1, 2), (3, 1, 1), (2, 1)]
    assert [(answer.task, answer.gold) for answer in scores.answers] == [("a", 0), ("a", 0), ("b", 1)]
    assert (scores.model, scores.loops) == ("bigram", 1)


def test_accuracies_and_scores_by_hand() -> None:
    scores = score_choices(bigram(), QUESTIONS)
    # Summed: .25 > .15, .216 > .2, .25 > .2. Per token: .25 < √.15, .6 > .2, .25 < √.2.
    assert [answer.right for answer in scores.answers] == [True, True, True]
    assert [answer.right_normalized for answer in scores.answers] == [False, True, False]
    assert scores.accuracy == 1
    assert scores.normalized_accuracy == pytest.approx(0.25)  # tasks: 1/2 and 0; over questions it would be 1/3
    per_token = [(0.25, 0.15**0.5), (0.6, 0.2, 0.2), (0.2**0.5, 0.25)]
    gold = [p[question.gold] for p, question in zip(per_token, QUESTIONS, strict=True)]
    assert scores.candidate_nll == pytest.approx(statistics.fmean(-sum(map(math.log, p)) / len(p) for p in per_token))
    assert scores.margin == pytest.approx(
        statistics.fmean([math.log(0.25 / 0.15**0.5), math.log(0.6 / 0.2), math.log(0.25 / 0.2**0.5)])
    )
    assert scores.gold_probability == pytest.approx(
        statistics.fmean(g / sum(p) for g, p in zip(gold, per_token, strict=True))
    )


def test_the_last_exit_of_the_run_answers() -> None:
    assert score_choices(bigram(4), QUESTIONS).answers == score_choices(bigram(), QUESTIONS).answers
    assert score_choices(bigram(4), QUESTIONS, 2).loops == 2


def test_a_tie_is_no_right_answer() -> None:
    twice = Question(context=(0,), choices=((1,), (2,)), gold=0)
    (answer,) = score_choices(bigram(), [twice]).answers
    assert (answer.right, answer.right_normalized, answer.margin) == (False, False, 0)
    assert answer.gold_probability == pytest.approx(0.5)


def test_hopeless_choices_have_no_probability_left() -> None:
    answer = Answer(task="", gold=0, nlls=(3000.0, 1.0), lengths=(1, 1))
    assert answer.gold_probability == pytest.approx(0, abs=1e-300)
    assert Answer(task="", gold=0, nlls=(1.0, math.inf), lengths=(1, 1)).gold_probability == 1


def test_a_transformer_gives_every_batch_size_the_same_answers() -> None:
    config = lv.models.TransformerConfig(vocab_size=3, d_model=8, d_ff=16, init_std=0.5)
    model = lv.models.LoopedTransformer(config).looped()
    alone, together = (score_choices(model, QUESTIONS, batch_size=size) for size in (1, 16))
    for a, b, question in zip(alone.answers, together.answers, QUESTIONS, strict=True):
        assert a.nlls == pytest.approx(b.nlls, rel=1e-5)
        # Token by token, from the whole sequence.
        for nll, choice in zip(a.nlls, question.choices, strict=True):
            whole = torch.tensor([[*question.context, *choice]])
            log_p = lv.unroll(model, whole).logits(4)[0].log_softmax(-1)
            n = len(question.context)
            expected = -sum(log_p[n + i - 1, token] for i, token in enumerate(choice))
            assert nll == pytest.approx(float(expected), rel=1e-5)


def test_long_contexts_lose_their_beginning() -> None:
    seen = []

    def embed(tokens: torch.Tensor) -> tuple[torch.Tensor, None]:
        seen.extend(tokens.tolist())
        return bigram().embed(tokens)

    model = lv.Looped(embed=embed, step=bigram().step, readout=bigram().readout, trained_loops=1)
    question = Question(context=(0, 1, 2, 1, 0), choices=((1,), (2, 2)), gold=0)
    short = score_choices(model, [question], max_tokens=3)
    assert sorted(seen) == [[0, 2], [1, 0]]  # inputs of 1 0 | 1 and of 0 | 2 2, without the last token
    assert short.answers == score_choices(bigram(), [question]).answers  # a bigram does not miss the rest


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"got a Linear to measure; expected a loopverify\.Looped"):
        score_choices(torch.nn.Linear(1, 1), QUESTIONS)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no questions; expected at least one"):
        score_choices(bigram(), [])
    with pytest.raises(InputError, match="batch_size is 0; expected an integer >= 1"):
        score_choices(bigram(), QUESTIONS, batch_size=0)
    with pytest.raises(InputError, match="choice 0 of question 1 has 3 tokens; expected fewer than max_tokens = 3"):
        score_choices(bigram(), QUESTIONS, max_tokens=3)
    with pytest.raises(InputError, match=r"tokens span 0\.\.3; expected 0\.\.2 for a vocabulary of 3"):
        score_choices(bigram(), [Question(context=(0, 3), choices=((1,), (2,)), gold=0)])
    with pytest.raises(InputError, match=r"targets contain 3; expected 0\.\.2 for 3 logits"):
        score_choices(bigram(), [Question(context=(0,), choices=((3,), (2,)), gold=0)])
