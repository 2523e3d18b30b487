"""Two models on the same questions: differences, exact tests and intervals with known answers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import binomtest

from loopverify.errors import InputError
from loopverify.measures.choices import Answer, ChoiceScores
from loopverify.measures.paired_choices import compare_choices


def scores(name: str, margins: list[float], task: str = "t") -> ChoiceScores:
    """Two choices a question, of one token each: NLL 3 for the gold one, and `margin` more for the other."""
    answers = (Answer(task=task, gold=0, nlls=(3.0, 3.0 + margin), lengths=(1, 1)) for margin in margins)
    return ChoiceScores(model=name, loops=4, answers=tuple(answers))


def test_means_change_by_what_they_change() -> None:
    first, second = scores("first", [-1.0, 0.5, 2.0, 1.0]), scores("second", [1.0, 1.5, 2.5, 1.5])
    found = compare_choices(first, second)
    assert (found.models, found.questions, found.confidence) == (("first", "second"), 4, 0.95)
    assert (found.margin.first, found.margin.second, found.margin.change) == pytest.approx((0.625, 1.625, 1.0))
    assert found.candidate_nll.change == pytest.approx(0.5)  # half of it: the mean of both choices
    sigmoid = [1 / (1 + math.exp(-m)) for m in (1.0, 1.5, 2.5, 1.5)]
    assert found.gold_probability.second == pytest.approx(sum(sigmoid) / 4)
    low, high = found.margin.interval
    assert 0.5 <= low <= 1.0 <= high <= 2.0  # of the differences 2, 1, 1/2, 1/2
    assert found.margin.separated


def test_accuracies_are_tested_by_their_disagreements() -> None:
    # Both right twice, only the second right five times, only the first once, both wrong once.
    first, second = scores("a", [1, 1, -1, -1, -1, -1, -1, 1, -1]), scores("b", [1, 1, 1, 1, 1, 1, 1, -1, -1])
    found = compare_choices(first, second)
    for accuracy in (found.accuracy, found.normalized_accuracy):  # one token each: the same
        assert (accuracy.first, accuracy.second) == pytest.approx((3 / 9, 7 / 9))
        assert accuracy.change == pytest.approx(4 / 9)
        assert (accuracy.only_first, accuracy.only_second) == (1, 5)
        assert accuracy.p == pytest.approx(binomtest(1, 6, 0.5).pvalue)


def test_intervals_are_those_of_resampled_questions() -> None:
    draw = np.random.default_rng(3)
    before, gain = draw.normal(size=400), draw.normal(0.1, 0.5, size=400)
    found = compare_choices(scores("a", list(before)), scores("b", list(before + gain))).margin
    resampled = draw.choice(gain, size=(4000, 400)).mean(1)
    assert found.interval == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=0.005)
    # Pairing is what makes it narrow: unpaired, the margins alone spread by ±0.14.
    assert found.interval[1] - found.interval[0] < 0.15


def test_a_model_is_not_separated_from_itself() -> None:
    one = scores("a", [1.0, -1.0, 2.0])
    found = compare_choices(one, dataclasses.replace(one, model="b"))
    assert found.candidate_nll.interval == (0, 0)
    assert not found.candidate_nll.separated
    assert (found.accuracy.p, found.accuracy.change) == (1, 0)


def test_refusals() -> None:
    with pytest.raises(InputError, match="2 and 3 answers; expected two models on the same questions"):
        compare_choices(scores("a", [1, 2]), scores("b", [1, 2, 3]))
    with pytest.raises(InputError, match=r"question 0 has task 't' and gold choice 0 of 2 .* task 'u'"):
        compare_choices(scores("a", [1, 2]), scores("b", [1, 2], task="u"))
    with pytest.raises(InputError, match="expected two or more finite numbers to resample"):
        compare_choices(scores("a", [1]), scores("b", [1]))
