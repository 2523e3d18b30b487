"""Instances of a task: which ones a step and an evaluation see, and that nothing else moves them."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import Tensor

from loopverify.tasks import NOT_ASKED, Circuit, Hops, Paragg
from tests.loopverify.tasks import oracles
from train.data import TaskExamples, TaskSpec

TASK = Hops(symbols=5, depth=4)


def examples(task: Hops | Circuit | Paragg = TASK, held_out_count: int = 64) -> TaskExamples:
    return TaskExamples(spec=TaskSpec(task=task), batch=8, held_out_count=held_out_count)


def batches(seed: int, start: int = 0, count: int = 6) -> list[Tensor]:
    """Tokens and targets of some steps, (B, 2, T) each."""
    drawn = islice(examples().training(seed, start, lambda rows: rows), count)
    return [torch.stack(batch, 1) for batch in drawn]


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    first = batches(0)
    assert all(map(torch.equal, first, batches(0)))
    assert all(map(torch.equal, first[4:], batches(0, start=4)))
    drawn = [*first, *batches(1)]
    assert not any(torch.equal(a, b) for place, a in enumerate(drawn) for b in drawn[:place])


def test_global_random_numbers_neither_move_the_draws_nor_are_moved_by_them() -> None:
    first = batches(0)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    assert all(map(torch.equal, first, batches(0)))
    list(examples().held_out(64))
    assert torch.equal(torch.get_rng_state(), before)


def test_processes_share_a_batch() -> None:
    parts = [
        next(examples().training(3, 2, lambda rows, part=part: rows.tensor_split(3)[part]))[0] for part in range(3)
    ]
    assert [len(part) for part in parts] == [3, 3, 2]
    assert torch.equal(torch.cat(parts), batches(3, start=2)[0][:, 0])


def test_held_out_instances_never_change_and_are_none_of_training() -> None:
    one = examples()
    (tokens, targets), *rest = one.held_out(64)
    assert (tokens.shape, targets.shape, rest) == ((64, 6), (64, 6), [])
    list(islice(one.training(0, 0, lambda rows: rows), 3))
    for again in (one, examples()):
        ((same, _),) = again.held_out(64)
        assert torch.equal(same, tokens)
    ((fewer, _),) = one.held_out(24)
    assert torch.equal(fewer, tokens[:24])
    trained_on = {row for seed in (0, 1) for batch in batches(seed) for row in map(tuple, batch[:, 0].tolist())}
    assert len({*map(tuple, tokens.tolist())} - trained_on) > 60  # of some 10^5 there are, one may come twice


def test_held_out_batches_are_of_one_size() -> None:
    def sizes(held_out_count: int, count: int) -> list[int]:
        return [len(tokens) for tokens, _ in examples(held_out_count=held_out_count).held_out(count)]

    assert sizes(4096, 4096) == [1024] * 4
    assert sizes(4096, 1024) == [1024]
    assert sizes(4096, 2500) == [1024, 1024]
    assert sizes(64, 100) == [64]


def test_instances_by_depth_are_the_held_out_ones_and_answered_in_so_many_steps() -> None:
    found = examples().by_depth()
    assert list(found) == [1, 2, 3, 4]
    for d, (tokens, targets) in found.items():
        answers = [oracles.hops(TASK, row)[:2] for row in tokens.tolist()]
        assert answers == [(answer, d) for answer in targets[:, -1].tolist()]
        assert bool((targets[:, :-1] == NOT_ASKED).all())
    ((held_out, _),) = examples().held_out(64)
    together = torch.cat([tokens for tokens, _ in found.values()])
    assert sorted(together.tolist()) == sorted(held_out.tolist())


def test_another_task_has_another_digest() -> None:
    assert examples().digest == examples(held_out_count=8).digest
    others = (Hops(symbols=6, depth=4), Hops(symbols=5, depth=3), Circuit(), Paragg())
    assert len({examples().digest, *(examples(task).digest for task in others)}) == 5
    assert examples().facts == {"task": "hops (symbols 5, depth 4)", "vocabulary": "50"}


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_every_seed_of_a_run_can_be_drawn_by(seed: int) -> None:
    assert len(batches(seed, count=1)) == 1
