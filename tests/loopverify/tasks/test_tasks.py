"""Tasks compared with an oracle that reads the tokens: answers, exact depths, balance, and questions."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from loopverify.arguments import IGNORE
from loopverify.errors import InputError
from loopverify.tasks import NOT_ASKED, Circuit, Hops, Paragg, Sequences, Task
from tests.loopverify.tasks import oracles

TASKS: list[Task] = [
    Hops(),
    Hops(symbols=9, depth=3),
    Hops(symbols=2, depth=1),
    Circuit(),
    Circuit(width=2, depth=1),
    Circuit(width=5, depth=3),
    Paragg(),
    Paragg(symbols=11, depth=3, width=5),
    Paragg(symbols=3, depth=1, width=1),
]
every_task = pytest.mark.parametrize("task", TASKS, ids=repr)


def drawn(task: Task, count: int = 200, seed: int = 0, depth: int | None = None) -> Sequences:
    return task.draw(count, torch.Generator().manual_seed(seed), depth)


@every_task
def test_form(task: Task) -> None:
    sequences = drawn(task)
    tokens, targets = sequences.tokens, sequences.targets
    assert tokens.shape == targets.shape == (200, task.length)
    assert tokens.dtype == targets.dtype == sequences.depths.dtype == torch.int64
    assert (targets[:, :-1] == NOT_ASKED).all()
    assert NOT_ASKED == IGNORE
    assert set(targets[:, -1].tolist()) == set(range(task.answers))
    assert tokens.min() >= task.answers, "no answer stands in the sequence as such"
    assert tokens.max() < task.vocab_size


@every_task
def test_the_last_token_of_the_vocabulary_is_used(task: Task) -> None:
    assert drawn(task, 20_000).tokens.max() == task.vocab_size - 1


@pytest.mark.parametrize("task", [task for task in TASKS if isinstance(task, Hops)], ids=repr)
def test_hops(task: Hops) -> None:
    sequences = drawn(task)
    for tokens, answer, depth in zip(
        sequences.tokens.tolist(), sequences.targets[:, -1].tolist(), sequences.depths.tolist(), strict=True
    ):
        found, d, walk = oracles.hops(task, tokens)
        assert (found, d) == (answer, depth)
        assert len(set(walk)) == depth + 1, "a shorter walk ends there, too"


@pytest.mark.parametrize("task", [task for task in TASKS if isinstance(task, Circuit)], ids=repr)
def test_circuit(task: Circuit) -> None:
    sequences = drawn(task)
    for tokens, answer, depth in zip(
        sequences.tokens.tolist(), sequences.targets[:, -1].tolist(), sequences.depths.tolist(), strict=True
    ):
        assert oracles.circuit(task, tokens) == (answer, depth, {depth})


@pytest.mark.parametrize("task", [task for task in TASKS if isinstance(task, Paragg)], ids=repr)
def test_paragg(task: Paragg) -> None:
    sequences = drawn(task)
    for tokens, answer, depth in zip(
        sequences.tokens.tolist(), sequences.targets[:, -1].tolist(), sequences.depths.tolist(), strict=True
    ):
        found, d, walks = oracles.paragg(task, tokens)
        assert (found, d) == (answer, depth)
        assert all(len(set(walk)) == depth + 1 for walk in walks)
        assert len({walk[0] for walk in walks}) == task.width
        assert 2 * depth < task.symbols


@every_task
@pytest.mark.parametrize("deep", [False, True])
def test_answers_are_balanced_at_every_depth(task: Task, deep: bool) -> None:
    """Each answer's share is within five standard errors of its probability by construction."""
    count = 8000
    answers = Counter(drawn(task, count, depth=task.depth if deep else 1).targets[:, -1].tolist())  # type: ignore[attr-defined]
    share = 1 / task.answers
    for answer in range(task.answers):
        assert abs(answers[answer] / count - share) < 5 * math.sqrt(share * (1 - share) / count)


@every_task
def test_depths(task: Task) -> None:
    deepest = task.depth  # type: ignore[attr-defined]
    assert set(drawn(task).depths.tolist()) == set(range(1, deepest + 1))
    assert set(drawn(task, depth=deepest).depths.tolist()) == {deepest}
    for depth in (0, deepest + 1):
        with pytest.raises(
            InputError, match=rf"depth is {depth}; expected 1\.\.{deepest}, the largest depth of this task"
        ):
            drawn(task, depth=depth)


def test_no_answer_of_hops_is_its_start_and_all_others_are_as_likely() -> None:
    task = Hops()
    for depth in (1, 4):
        sequences = drawn(task, 8000, depth=depth)
        starts = (sequences.tokens[:, -1] - 30) // task.depth
        ahead = Counter(((sequences.targets[:, -1] - starts) % 5).tolist())
        assert ahead[0] == 0
        assert all(abs(ahead[k] / 8000 - 1 / 4) < 5 * math.sqrt(3 / 16 / 8000) for k in (1, 2, 3, 4))


@every_task
def test_one_seed_gives_one_draw_and_a_generator_goes_on(task: Task) -> None:
    one, same, other = drawn(task), drawn(task), drawn(task, seed=1)
    assert torch.equal(one.tokens, same.tokens)
    assert torch.equal(one.targets, same.targets)
    assert not torch.equal(one.tokens, other.tokens)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(task.draw(200, generator).tokens, one.tokens)
    assert not torch.equal(task.draw(200, generator).tokens, one.tokens)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hops(symbols=4), "symbols is 4; expected an integer >= 5, for a walk that visits none twice"),
        (lambda: Hops(depth=0), "depth is 0; expected an integer >= 1"),
        (lambda: Circuit(width=1), "width is 1; expected an integer >= 2, for gates that read two wires"),
        (lambda: Paragg(symbols=8), "symbols is 8; expected an integer >= 9, for a cycle on which the way back is no"),
        (lambda: Paragg(width=10), "symbols is 9; expected an integer >= 10, for starts that differ"),
        (lambda: drawn(Hops(), 0), "count is 0; expected an integer >= 1"),
    ],
)
def test_what_cannot_be_is_refused(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]
