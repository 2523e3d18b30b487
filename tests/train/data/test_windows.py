"""Windows of a token stream, the order of training that needs no state, and evaluation windows that never move."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopverify.errors import InputError
from train.data import Windows

sizes = {"tokens": st.integers(3, 200), "length": st.integers(1, 20), "stride": st.integers(1, 25)}


def test_the_papers_windows_by_hand() -> None:
    windows = Windows(torch.arange(1000, dtype=torch.int32), 256, 128)
    # Starts 0, 128, ..., 640: the next, 768, would need the tokens up to 1024.
    assert len(windows) == 6
    inputs, targets = windows.batch([0, 5])
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.tolist() == [list(range(256)), list(range(640, 896))]
    assert targets.tolist() == [list(range(1, 257)), list(range(641, 897))]
    assert inputs.is_contiguous()
    assert targets.is_contiguous()


@given(**sizes)
def test_there_are_as_many_windows_as_fit(tokens: int, length: int, stride: int) -> None:
    stream = list(range(tokens))
    slices = [stream[a : a + length + 1] for a in range(0, tokens, stride)]
    whole = [s for s in slices if len(s) == length + 1]
    if not whole:
        with pytest.raises(InputError, match="expected at least"):
            Windows(torch.tensor(stream), length, stride)
        return
    windows = Windows(torch.tensor(stream), length, stride)
    inputs, targets = windows.batch(range(len(windows)))
    assert inputs.tolist() == [s[:-1] for s in whole]
    assert targets.tolist() == [s[1:] for s in whole]


@given(windows=st.integers(1, 40), batch=st.integers(1, 10), seed=st.integers(0, 9), epoch=st.integers(0, 3))
def test_an_epoch_shows_each_window_once_but_for_the_last_part_of_a_batch(
    windows: int, batch: int, seed: int, epoch: int
) -> None:
    whole = Windows(torch.arange(windows + 1), 1, 1)
    if batch > windows:
        return
    steps = windows // batch
    seen = torch.cat([whole.order(epoch * steps + step, batch, seed) for step in range(steps)])
    assert len(seen) == steps * batch
    assert len(set(seen.tolist())) == len(seen)
    assert set(seen.tolist()) <= set(range(windows))


def test_the_order_depends_on_its_arguments_alone() -> None:
    stream = torch.arange(5000)
    straight = [Windows(stream, 16, 8).order(step, 32, 7).tolist() for step in range(60)]
    state = torch.get_rng_state()
    torch.manual_seed(1)
    backwards = [Windows(stream, 16, 8).order(step, 32, 7).tolist() for step in reversed(range(60))]
    assert backwards[::-1] == straight
    Windows(stream, 16, 8).order(0, 32, 8)
    after, _ = torch.get_rng_state(), torch.manual_seed(1)
    assert torch.equal(after, torch.get_rng_state())  # no draw was taken from the global generator
    torch.set_rng_state(state)


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    windows = Windows(torch.arange(1001), 1, 1)
    orders = [windows.order(step, 1000, seed).tolist() for step in range(3) for seed in range(3)]
    assert len({tuple(order) for order in orders}) == 9
    assert all(sorted(order) == list(range(1000)) for order in orders)
    # Of two random permutations of 1000 about one place in 1000 agrees; seed + epoch as one seed would repeat.
    assert max(sum(a == b for a, b in zip(x, y, strict=True)) for x in orders for y in orders if x is not y) < 20


def test_what_a_caller_does_to_an_order_does_not_reach_the_next() -> None:
    windows = Windows(torch.arange(101), 1, 1)
    first = windows.order(0, 10, 0)
    kept = first.tolist()
    first.zero_()
    assert windows.order(0, 10, 0).tolist() == kept


@given(**sizes, count=st.integers(1, 30), batch=st.integers(1, 12))
def test_evaluation_windows_are_apart_evenly_and_in_batches_of_one_size(
    tokens: int, length: int, stride: int, count: int, batch: int
) -> None:
    if tokens < length + 1:
        return
    windows = Windows(torch.arange(tokens), length, stride)
    batches = list(windows.evenly_spaced(count, batch))
    assert len({inputs.shape for inputs, _ in batches}) == 1
    inputs, targets = (torch.cat(half) for half in zip(*batches, strict=True))
    starts = inputs[:, 0].tolist()
    assert all(b - a >= length for a, b in pairwise(starts))
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs, torch.tensor(starts)[:, None] + torch.arange(length))
    fit = min(count, (tokens - 1) // length)
    assert len(starts) == fit - fit % min(batch, fit)
    gaps = {b - a for a, b in pairwise(starts)}
    assert not gaps or max(gaps) - min(gaps) <= length  # even, up to one window
    # From the beginning to the end: what lies after the last window is no longer than the widest gap.
    assert tokens - starts[-1] <= max(gaps, default=tokens) + 2 * length


def test_evaluation_windows_by_hand() -> None:
    windows = Windows(torch.arange(101), 10, 10)  # ten windows that do not overlap
    assert [inputs[:, 0].tolist() for inputs, _ in windows.evenly_spaced(4, 2)] == [[0, 20], [50, 70]]
    assert [inputs[:, 0].tolist() for inputs, _ in windows.evenly_spaced(99, 5)] == [
        [0, 10, 20, 30, 40],
        [50, 60, 70, 80, 90],
    ]
    assert [inputs[:, 0].tolist() for inputs, _ in windows.evenly_spaced(2, 64)] == [[0, 50]]


@pytest.mark.parametrize(
    ("tokens", "length", "stride", "words"),
    [
        (
            torch.arange(256),
            256,
            128,
            "the held-out text has 256 tokens; expected at least 257, which one window of 256",
        ),
        (torch.arange(0), 1, 1, "the held-out text has 0 tokens; expected at least 2"),
        (torch.arange(9), 0, 1, "length is 0; expected an integer >= 1"),
        (torch.arange(9), 2, 0, "stride is 0; expected an integer >= 1"),
        (torch.arange(9), 2, 1.0, "stride is 1.0; expected an integer >= 1"),
        (torch.zeros(9), 2, 1, "are torch.float32 (9,); expected an integer tensor of shape (N,)"),
        (torch.zeros(3, 3, dtype=torch.int64), 2, 1, "are torch.int64 (3, 3); expected an integer tensor"),
        ([1, 2, 3], 2, 1, "the tokens of the held-out text are list; expected an integer tensor"),
    ],
)
def test_a_stream_that_has_no_window_is_rejected(tokens: object, length: int, stride: int, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        Windows(tokens, length, stride, name="held-out text")  # type: ignore[arg-type]


def test_what_no_window_answers_to_is_rejected() -> None:
    windows = Windows(torch.arange(10), 2, 2)  # four windows
    for indices in ([4], [-1], [], [[0]]):
        with pytest.raises(InputError, match=re.escape("expected a row of integers in 0..3")):
            windows.batch(indices)
    for batch in (0, 5):
        with pytest.raises(InputError, match=re.escape(f"batch is {batch}; expected 1..4, the windows that the text")):
            windows.order(0, batch, 0)
    with pytest.raises(InputError, match="step is -1 and seed 0; expected integers >= 0"):
        windows.order(-1, 2, 0)
    with pytest.raises(InputError, match="count is 0 and batch 2; expected integers >= 1"):
        windows.evenly_spaced(0, 2)
