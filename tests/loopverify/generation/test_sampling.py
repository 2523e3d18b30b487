"""The choice of a token against the logits warpers of transformers, and against the distribution itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from loopverify.generation import Sampling

V, GRID = 12, 4000


def shares(sampling: Sampling, logits: torch.Tensor) -> torch.Tensor:
    """How often each token is chosen over a grid of uniform numbers: its probability to within 2 / GRID."""
    grid = (torch.arange(GRID) + 0.5) / GRID
    chosen = sampling.choose(logits.expand(GRID, -1), grid)
    return torch.bincount(chosen, minlength=V) / GRID


@settings(max_examples=60)
@given(
    st.floats(0.2, 3),
    st.none() | st.integers(1, V + 3),
    st.none() | st.floats(0.01, 1),
    st.integers(0, 2**31),
)
def test_the_choice_is_that_of_transformers(
    temperature: float, top_k: int | None, top_p: float | None, seed: int
) -> None:
    logits = 3 * torch.randn(1, V, generator=torch.Generator().manual_seed(seed))
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(temperature))])
    if top_k is not None:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p is not None:
        warpers.append(TopPLogitsWarper(top_p))
    expected = warpers(torch.zeros(1, 1, dtype=torch.int64), logits.clone())[0].softmax(-1)
    found = shares(Sampling(temperature=temperature, top_k=top_k, top_p=top_p), logits)
    assert ((found - expected).abs() <= 2 / GRID).all()


@pytest.mark.parametrize(
    ("p", "top_k", "top_p", "left"),
    [
        ([0.25] * 4, None, 0.5, 2),  # half is at least half, and a third token is not needed
        ([0.4, 0.3, 0.2, 0.1], 2, 0.5, 1),  # of the two likeliest, the first has 4/7
        ([0.4, 0.3, 0.2, 0.1], None, 0.5, 2),
    ],
)
def test_top_p_takes_the_fewest_of_what_top_k_has_left(
    p: list[float], top_k: int | None, top_p: float, left: int
) -> None:
    found = shares(Sampling(temperature=1.0, top_k=top_k, top_p=top_p), torch.tensor([p]).log())
    assert int(found.count_nonzero()) == left


def test_without_a_random_number_the_likeliest_token_is_taken() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, -1.0, 4.0]])
    assert Sampling().choose(logits, None).tolist() == [1, 0]


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_the_ends_of_the_unit_interval_choose_a_token_that_may_be(uniform: float) -> None:
    logits = torch.tensor([[-torch.inf, 1.0, 0.0, -torch.inf]])
    for sampling in (Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=3), Sampling(temperature=1.0, top_p=1)):
        chosen = sampling.choose(logits, torch.tensor([uniform]))
        assert chosen.tolist() == ([1] if uniform == 0 else [2])
