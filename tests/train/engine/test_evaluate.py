"""Metrics of a task: accuracies of a model whose answers are known, and exits at an equal first exit."""

from __future__ import annotations

import math

import pytest
import torch

from loopverify.looped import Looped
from loopverify.tasks import Hops
from tests.loopverify.tasks import oracles
from train.data import TaskExamples, TaskSpec
from train.engine.evaluate import at_first_exit, evaluate

TASK = Hops(symbols=3, depth=2)


def knowing() -> Looped:
    """A model that knows every answer of d steps from exit d on, and says 0 before: the state counts the loops."""

    def answer(tokens: torch.Tensor, loop: int) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, TASK.vocab_size)
        for row, sequence in enumerate(tokens.tolist()):
            right, d, _ = oracles.hops(TASK, sequence)
            logits[row, -1, right if loop >= d else 0] = 1.0
        return logits

    return Looped(
        embed=lambda tokens: (torch.zeros(*tokens.shape, 1), tokens),
        step=lambda state, context, loop: state + 1,
        readout=lambda state, context, loop, loops: answer(context, loop),
        trained_loops=2,
    )


def test_accuracies_by_depth_and_exit() -> None:
    examples = TaskExamples(spec=TaskSpec(task=TASK), batch=4, held_out_count=200)
    by_depth = examples.by_depth()
    metrics = evaluate(knowing(), examples.held_out(200), by_depth)
    guessed = float((by_depth[2][1][:, -1] == 0).double().mean())
    assert 0 < guessed < 1
    assert {name: value for name, value in metrics.items() if name.startswith("accuracy")} == {
        "accuracy_1@1": 1.0,
        "accuracy_1@2": 1.0,
        "accuracy_2@1": pytest.approx(guessed),
        "accuracy_2@2": 1.0,
    }
    # A logit of 1 for the right answer, 0 for the other 3 + 9 + 6 - 1 tokens.
    assert metrics["ce@2"] == pytest.approx(math.log(math.e + 17) - 1)


def test_a_text_has_no_accuracies() -> None:
    examples = TaskExamples(spec=TaskSpec(task=TASK), batch=4, held_out_count=8)
    assert not [name for name in evaluate(knowing(), examples.held_out(8)) if name.startswith("accuracy")]


def test_exits_at_an_equal_first_exit() -> None:
    history = [
        {"step": 100, "ce@1": 0.76, "ce@2": 0.7},
        {"step": 200, "ce@1": 0.75, "ce@2": 0.6},
        {"step": 300, "ce@1": 0.1, "ce@2": 0.0},
    ]
    assert at_first_exit(history, 0.75, 2) == {"ce_matched@1": 0.75, "ce_matched@2": 0.6, "step_matched": 200}
    assert all(math.isnan(value) for value in at_first_exit(history[:1], 0.75, 2).values())
