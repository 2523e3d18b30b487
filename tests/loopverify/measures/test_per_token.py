"""Per-token numbers of logits against definitions written out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from loopverify.errors import InputError
from loopverify.measures.per_token import entropies, margins, mean_counted, token_losses, top_probabilities

# p = (1/2, 1/4, 1/8, 1/8): an entropy of 7/4 bits.
LOGITS = torch.tensor([[[0.5, 0.25, 0.125, 0.125]]], dtype=torch.float64).log() + 3.0


def test_of_a_distribution_with_known_bits() -> None:
    assert float(entropies(LOGITS)) == pytest.approx(1.75 * math.log(2))
    assert float(margins(LOGITS)) == pytest.approx(math.log(2))
    assert float(top_probabilities(LOGITS)) == pytest.approx(0.5)
    assert float(token_losses(LOGITS, torch.tensor([[2]]))) == pytest.approx(3 * math.log(2))


def test_impossible_tokens_add_no_entropy() -> None:
    logits = torch.tensor([0.0, 0.0, -math.inf])
    assert float(entropies(logits)) == pytest.approx(math.log(2))
    assert entropies(torch.tensor([0.0, math.nan])).isnan()


def test_half_precisions_are_measured_in_float32() -> None:
    logits = torch.randn(2, 3, 7).bfloat16()
    for measure in (entropies, margins, top_probabilities):
        assert measure(logits).dtype == torch.float32
        assert torch.equal(measure(logits), measure(logits.float()))


def test_ignored_targets_cost_nothing_and_do_not_count() -> None:
    logits, targets = torch.randn(2, 3, 7), torch.tensor([[1, -100, 2], [-100, -100, 6]])
    losses = token_losses(logits, targets)
    assert (losses == 0).tolist() == [[False, True, False], [True, True, False]]
    p = logits.softmax(-1)
    expected = -(p[0, 0, 1] * p[0, 2, 2] * p[1, 2, 6]).log() / 3
    assert float(mean_counted(losses, targets)) == pytest.approx(float(expected), rel=1e-6)


def test_refusals() -> None:
    with pytest.raises(
        InputError, match=r"targets contain 7; expected 0\.\.6 for 7 logits \(-100 leaves a token out\)"
    ):
        token_losses(torch.zeros(1, 2, 7), torch.tensor([[0, 7]]))
    with pytest.raises(InputError, match="a margin of 1 logits; expected at least two"):
        margins(torch.zeros(3, 1))
