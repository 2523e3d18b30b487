"""The resolution of a step, compared with the second difference that rounding of known coarseness must give."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import loopverify as lv
from loopverify.checks import CHECKS
from loopverify.checks.resolution import NUDGES, resolutions
from loopverify.checks.subject import SAFETY, Subject

V, D = 11, 256
EPS = 2.0**-23


def stepping(step: Callable[[Tensor], Tensor], scale: float = 1.0) -> lv.Looped:
    torch.manual_seed(0)
    table, head = nn.Embedding(V, D), nn.Linear(D, V)
    return lv.Looped(
        embed=lambda tokens: (scale * table(tokens), None),
        step=lambda state, context, loop: step(state),
        readout=lambda state, context, loop, loops: head(state),
        trained_loops=2,
        module=nn.ModuleList([table, head]),
    )


def rounded(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda state: state.to(dtype).to(state)


@pytest.mark.parametrize(
    ("dtype", "bits", "scale"),
    [(torch.bfloat16, 7, 1e-3), (torch.bfloat16, 7, 1.0), (torch.bfloat16, 7, 1e5), (torch.float16, 10, 1.0)],
)
def test_a_staircase_leaves_its_steps_as_often_as_they_are_crossed(dtype: torch.dtype, bits: int, scale: float) -> None:
    # A stair of height u is crossed between x and x + d with probability |d| / u, and leaves u: 2 E|d| E u in square,
    # for both sides. E|d| = sqrt(2 / pi) nudge for normal d; and u is 2^-bits of the power of two below |x|, on
    # average 0.72 |x| (log-uniform mantissas), where E|x| = sqrt(2 / pi) as well.
    expected = math.sqrt(2 * (2 / math.pi) * NUDGES[-1] * 0.72 * 2.0**-bits)
    for found in resolutions(Subject(stepping(rounded(dtype), scale))):
        assert found.error == pytest.approx(expected, rel=0.3)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: 2 * x,
        lambda x: x + x.tanh(),
        lambda x: x + 0.5 * x.square(),
        lambda x: x / x.norm(dim=-1, keepdim=True),
    ],
    ids=["linear", "tanh", "square", "norm"],
)
def test_a_smooth_step_leaves_a_few_roundings_of_float32(step: Callable[[Tensor], Tensor]) -> None:
    for found in resolutions(Subject(stepping(step))):
        assert found.error < 4 * EPS
        assert found.error < found.limit / 10


def test_the_limit_grows_with_the_response_of_the_step_and_not_with_its_stairs() -> None:
    unit = SAFETY * EPS * math.sqrt(D)
    for step in (lambda x: x, rounded(torch.bfloat16)):
        assert [found.limit for found in resolutions(Subject(stepping(step)))] == pytest.approx([unit] * 4, rel=0.05)
    # x^3 changes by 3 x^2 d: in rms 3 sqrt(E x^4 / E x^6) = 3 sqrt(3 / 15) of d, relative.
    cubed = next(iter(resolutions(Subject(stepping(lambda x: x**3)))))
    assert cubed.limit == pytest.approx(unit * 3 * math.sqrt(3 / 15), rel=0.2)


def test_a_routing_decision_is_no_staircase() -> None:
    def route(x: Tensor) -> Tensor:
        return x + torch.where(x[..., :1] > x[..., 1:2], x.sin(), x.cos())

    assert CHECKS["state_dtype"].run(stepping(route)).status == "passed"


def test_a_zero_state_is_tried_at_rms_one() -> None:
    assert CHECKS["state_dtype"].run(stepping(lambda x: x + 1, scale=0.0)).status == "passed"
    result = CHECKS["state_dtype"].run(stepping(lambda x: rounded(torch.bfloat16)(x) + 1, scale=0.0))
    assert "step at loop 1 computes coarser than float32: at rms" in result.message


def test_a_cast_that_its_float64_copy_has_too_is_found() -> None:
    model = stepping(lambda x: x + x.tanh().bfloat16().to(x))
    result = CHECKS["state_dtype"].run(model)
    assert (result.status, result.unit) == ("failed", "relative")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_a_half_precision_there_is_nothing_coarser_to_look_for(dtype: torch.dtype) -> None:
    model = stepping(lambda x: x + x.tanh())
    model.module.to(dtype)
    result = CHECKS["state_dtype"].run(model)
    assert (result.status, result.message) == (
        "passed",
        f"all states are {dtype}; no coarser rounding is searched for",
    )


def test_a_step_that_does_not_repeat_itself_is_left_to_the_check_that_names_it() -> None:
    calls: list[Any] = []

    def count(x: Tensor) -> Tensor:
        calls.append(0)
        return x + len(calls)

    result = CHECKS["state_dtype"].run(stepping(count))
    assert (result.status, result.message) == (
        "passed",
        "all states are torch.float32; their precision is not measured, since a repeated step differs",
    )
