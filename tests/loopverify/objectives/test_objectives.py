"""Objectives compared with hand-written sums."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.objectives import named, norm_penalty

D, V, K = 5, 7, 3
TOKENS = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 0]])
TARGETS = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 1]])


@pytest.fixture
def trace() -> lv.Trace:
    table = torch.randn(V, D, dtype=torch.float64)
    head = torch.randn(D, V, dtype=torch.float64)
    mix = torch.randn(D, D, dtype=torch.float64)

    def step(state: Tensor, context: object, loop: int) -> Tensor:
        return state + (state @ mix).tanh()

    model = lv.Looped(embed=lambda t: (table[t], None), step=step, readout=lambda h, c, k, n: h @ head, trained_loops=K)
    return lv.unroll(model, TOKENS, grad=True)


def nll(logits: Tensor, targets: Tensor) -> list[float]:
    """Token by token, from the definition."""
    return [
        math.log(sum(math.exp(z) for z in row)) - row[y]
        for row, y in zip(logits.flatten(0, 1).tolist(), targets.flatten().tolist(), strict=True)
        if y != -100
    ]


def by_exit(trace: lv.Trace, targets: Tensor) -> list[float]:
    losses = [nll(trace.logits(k), targets) for k in range(1, K + 1)]
    return [sum(row) / len(row) for row in losses]


def test_terminal_is_the_last_exit_and_per_loop_the_mean_of_all(trace: lv.Trace) -> None:
    exits = by_exit(trace, TARGETS)
    assert named("terminal")(trace, TARGETS).total.item() == pytest.approx(exits[-1], rel=1e-12)
    assert named("per_loop")(trace, TARGETS).total.item() == pytest.approx(sum(exits) / K, rel=1e-12)


def test_ignored_targets_are_left_out_of_the_mean(trace: lv.Trace) -> None:
    targets = TARGETS.clone()
    targets[0, 1] = targets[1, 3] = -100
    assert named("terminal")(trace, targets).total.item() == pytest.approx(by_exit(trace, targets)[-1], rel=1e-12)


def test_the_penalty_is_weighted_and_the_parts_sum_to_the_total(trace: lv.Trace) -> None:
    squares = [sum(x * x for x in state.flatten().tolist()) / state.numel() for state in trace.states[1:]]
    terms = named("terminal+penalty", penalty=0.5)(trace, TARGETS)
    assert list(terms.parts) == ["terminal", "penalty"]
    assert terms.parts["penalty"].item() == pytest.approx(0.5 * sum(squares) / K, rel=1e-12)
    assert terms.total.item() == pytest.approx(sum(part.item() for part in terms.parts.values()), rel=1e-12)
    assert list(named("per_loop+penalty")(trace, TARGETS).parts) == ["per_loop", "penalty"]


def test_the_penalty_pulls_on_the_scale_of_every_state_by_its_closed_form(trace: lv.Trace) -> None:
    state = trace.states[K]
    (gradient,) = torch.autograd.grad(norm_penalty(trace), state)
    radial = (gradient * state).sum(-1)  # = 2 s^2 / (K * tokens) for the last state, from which no other is computed
    expected = 2 * state.square().mean(-1) / (K * TOKENS.numel())
    torch.testing.assert_close(radial, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("name", "penalty", "words"),
    [
        ("dense", 0.01, "unknown loss 'dense'; expected one of: per_loop, terminal"),
        ("per_loop+magic", 0.01, "unknown addition to the loss 'magic'; expected one of: penalty"),
        ("per_loop+penalty", 0.0, "penalty is 0.0; expected a finite weight > 0"),
        ("per_loop+penalty", math.nan, "penalty is nan; expected a finite weight > 0"),
        ("per_loop+penalty", math.inf, "penalty is inf; expected a finite weight > 0"),
        ("per_loop+penalty+penalty", 0.01, "adds 'penalty' twice; name it once"),
    ],
)
def test_unknown_names_and_weights_are_refused(name: str, penalty: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        named(name, penalty=penalty)


@pytest.mark.parametrize("targets", [TARGETS[:, :2], TARGETS.int()])
def test_targets_of_another_form_are_refused(trace: lv.Trace, targets: Tensor) -> None:
    with pytest.raises(InputError, match=r"targets are .*; expected int64 \(2, 4\), one next token for every token"):
        named("terminal")(trace, targets)
