"""Rows that stop: they cost nothing more, and the others do not notice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopverify.generation import MISSING, PAD, EarlyExit, Generated, generate, stream
from tests.loopverify.generation.test_cached import V, transformer

PROMPTS = [[4, 2, 9], [7], [1, 2, 3, 4, 5], [0, 3]]


def cut(found: Generated, stops: set[int]) -> list[list[int]]:
    """Rows that were generated without stops, cut behind the first stop by hand."""
    rows = []
    for row in found.tokens.tolist():
        ends = [place for place, token in enumerate(row) if token in stops]
        rows.append(row[: ends[0] + 1] if ends else row)
    return rows


@settings(max_examples=30)
@given(
    st.sets(st.integers(0, V - 1), max_size=6),
    st.sampled_from([None, *MISSING]),
    st.sampled_from([{}, {"temperature": 1.5}, {"temperature": 3.0, "top_k": 8, "top_p": 0.9}]),
    st.integers(1, 4),
    st.integers(0, 2**31),
)
def test_a_row_ends_with_its_stop_and_the_others_are_as_without(
    stops: set[int], missing: Any, drawing: dict[str, Any], loops: int, seed: int
) -> None:
    module = transformer().double()
    rule = None if missing is None else EarlyExit(threshold=1.0, missing=missing)

    def made(**settings: Any) -> Generated:
        generator = torch.Generator().manual_seed(seed)
        return generate(module, PROMPTS, 10, loops=loops, early_exit=rule, generator=generator, **drawing, **settings)

    whole, found = made(), made(stop=stops)
    expected = cut(whole, stops)
    assert found.lengths.tolist() == list(map(len, expected))
    assert found.tokens.shape == found.exits.shape == (4, max(map(len, expected)))
    for row, (tokens, length) in enumerate(zip(expected, found.lengths.tolist(), strict=True)):
        assert found.tokens[row].tolist() == tokens + [PAD] * (found.tokens.shape[1] - length)
        assert found.exits[row, :length].tolist() == whole.exits[row, :length].tolist()
        assert found.exits[row, length:].eq(0).all()


def test_a_row_that_has_stopped_costs_no_loops() -> None:
    module = transformer()
    first = generate(module, PROMPTS, 1).tokens[:, 0].tolist()
    stop = first[0]
    going = [place for place, token in enumerate(first) if token != stop]
    assert 0 < len(going) < 4, "a case in which some stop at once"
    whole, found = generate(module, PROMPTS, 2), generate(module, PROMPTS, 2, stop=stop)
    assert whole.executed - found.executed == 4 * (4 - len(going))
    # All rows stop with their first tokens: nothing is run after them.
    done = generate(module, PROMPTS, 50, stop=first)
    assert done.lengths.tolist() == [1] * 4
    assert done.tokens.shape == (4, 1)
    assert done.executed == generate(module, PROMPTS, 1).executed


def test_a_single_token_is_a_collection_of_one() -> None:
    module = transformer()
    stop = generate(module, PROMPTS, 4).tokens[1, 2].item()
    one, many = (generate(module, PROMPTS, 6, stop=stops) for stops in (stop, [stop]))
    assert torch.equal(one.tokens, many.tokens)
    assert one.lengths[1] <= 3


def test_a_stream_is_what_generate_puts_together() -> None:
    module = transformer().train()
    whole = generate(module, PROMPTS, 7)
    stop = whole.tokens[0, 3].item()
    expected = generate(module, PROMPTS, 7, stop=stop)
    grew: list[list[int]] = [[] for _ in PROMPTS]
    for step in stream(module, PROMPTS, 7, stop=stop):
        assert module.training, "the model is the caller's own between two steps"
        assert torch.is_grad_enabled()
        assert len(step.rows) == len(step.tokens) == len(step.exits)
        for row, token in zip(step.rows.tolist(), step.tokens.tolist(), strict=True):
            grew[row].append(token)
    assert grew == [
        row[:length] for row, length in zip(expected.tokens.tolist(), expected.lengths.tolist(), strict=True)
    ]
    assert step.executed == expected.executed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_random_numbers_are_torch_s_own_and_taken_only_where_something_is_drawn(temperature: float) -> None:
    module = transformer()

    def made() -> tuple[list[list[int]], float]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return generate(module, PROMPTS, 6, temperature=temperature).tokens.tolist(), float(torch.rand(()))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        untouched = float(torch.rand(()))
        torch.manual_seed(6)
        other = generate(module, PROMPTS, 6, temperature=temperature).tokens.tolist()
    (first, after), (again, _) = made(), made()
    assert first == again
    assert (after == untouched) == (temperature == 0)
    assert (first == other) == (temperature == 0)
