"""Carry of models whose factor is known, and the name it gets."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.probes import LoopCarry, mean_carry, over_loops, scale_carry
from tests.loopverify.probes.closed_form import TOKENS, D, looped, radial_step, rms

WEIGHT = torch.randn(D, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def branch(state: Tensor) -> Tensor:
    return torch.tanh((state / rms(state)) @ WEIGHT.T)


STEPS = {
    "pre-norm residual": (lambda H: H + branch(H), "carried", 1.0),
    "residual output added again": (lambda H: H + (H + branch(H)), "amplified", 2.0),
    "linear state with decay": (lambda H: 0.8 * H + branch(H), "damped", 0.8),
    "slow decay": (lambda H: 0.99 * H + branch(H), "damped", 0.99),
    "norm at the boundary": (lambda H: F.rms_norm(H + branch(H), (D,), eps=1e-6), "removed", 0.0),
    "post-norm branch, residual kept": (lambda H: H + F.rms_norm(branch(H), (D,), eps=1e-6), "carried", 1.0),
    "branch far larger than the state": (lambda H: H + 1e5 * branch(H), "carried", 1.0),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("start", [0.02, 1.0, 1000.0])
def test_scale_carry(name: str, start: float) -> None:
    step, kind, factor = STEPS[name]
    trace = lv.unroll(looped(step, start=start), TOKENS)
    for loop in range(1, 5):
        found = scale_carry(trace, loop)
        assert found.kind == kind
        assert found.factor == pytest.approx(factor, abs=1e-4)


@pytest.mark.parametrize(
    ("step", "kind", "factor"),
    [
        (lambda H: H + F.layer_norm(H, (D,)) @ WEIGHT.T, "carried", 1.0),
        (lambda H: 0.7 * H + F.layer_norm(H, (D,)) @ WEIGHT.T, "damped", 0.7),
        (lambda H: F.layer_norm(H + branch(H), (D,)), "removed", 0.0),
        (lambda H: (H - H.mean(-1, keepdim=True)) + branch(H), "removed", 0.0),
    ],
    ids=["pre-norm", "decay", "norm at the boundary", "centered stream"],
)
def test_mean_carry(step: object, kind: str, factor: float) -> None:
    found = mean_carry(lv.unroll(looped(step), TOKENS), 2)
    assert found.kind == kind
    assert found.factor == pytest.approx(factor, abs=1e-3)


def test_a_shift_can_be_removed_where_scale_is_not() -> None:
    def centered(x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    trace = lv.unroll(looped(lambda H: centered(H) + centered(branch(H))), TOKENS)
    assert scale_carry(trace, 2).kind == "carried"  # H_1 is centered already
    assert mean_carry(trace, 2).kind == "removed"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precisions_and_steps_that_overflow(dtype: torch.dtype) -> None:
    assert scale_carry(lv.unroll(looped(lambda H: H + 0.1, dtype=dtype), TOKENS), 2).kind == "carried"
    # H³ overflows at 2^20 in float16 and bfloat16; at twice and four times the state it is seen to grow.
    cubic = lv.unroll(looped(lambda H: H + H**3, dtype=dtype, start=0.5), TOKENS, loops=1)
    assert scale_carry(cubic, 1).kind == "amplified"


def test_a_zero_state_has_no_scale_to_carry() -> None:
    trace = lv.unroll(looped(lambda H: H + 1, start=0.0), TOKENS, loops=2)
    with pytest.raises(InputError, match="every token of H"):
        scale_carry(trace, 1)
    assert scale_carry(trace, 2).kind == "carried"


def test_loops_in_a_row_multiply() -> None:
    halves = [LoopCarry(kind="damped", factor=0.5), LoopCarry(kind="damped", factor=0.125)]
    assert over_loops(halves, torch.float32) == LoopCarry(kind="damped", factor=pytest.approx(0.25))
    # What one loop doubles and the next one halves is carried.
    undone = [LoopCarry(kind="amplified", factor=2.0), LoopCarry(kind="damped", factor=0.5)]
    assert over_loops(undone, torch.float32).kind == "carried"
    gone = [LoopCarry(kind="carried", factor=1.0), LoopCarry(kind="removed", factor=0.0)]
    assert over_loops(gone, torch.float32) == LoopCarry(kind="removed", factor=0.0)


def test_the_equilibrium_of_a_damped_scale() -> None:
    # s -> c·s + a settles at a/(1 − c): the closed form that the advice names.
    trace = lv.unroll(looped(radial_step(0.8, 0.6)), TOKENS, loops=100)
    assert float(rms(trace.states[-1]).mean()) == pytest.approx(0.6 / (1 - scale_carry(trace, 100).factor), rel=1e-6)
    assert math.isclose(scale_carry(trace, 100).factor, 0.8, rel_tol=1e-6)
