"""Carry of models whose factor is known, and the name it gets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import loopverify as lv
from loopverify.auditing.carry import (
    LEAK,
    LoopCarry,
    geometric_mean,
    lasting_mean,
    lasting_scale,
    mean_carry,
    scale_carry,
)
from loopverify.auditing.consecutive import dominant_direction
from loopverify.errors import InputError
from tests.loopverify.closed_form import TOKENS, D, looped, radial_step, rms

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


def test_the_carries_of_single_loops_multiply() -> None:
    halves = [LoopCarry(kind="damped", factor=0.5), LoopCarry(kind="damped", factor=0.125)]
    assert geometric_mean(halves, torch.float32) == LoopCarry(kind="damped", factor=pytest.approx(0.25))
    # What one loop doubles and the next one halves is carried.
    undone = [LoopCarry(kind="amplified", factor=2.0), LoopCarry(kind="damped", factor=0.5)]
    assert geometric_mean(undone, torch.float32).kind == "carried"
    gone = [LoopCarry(kind="carried", factor=1.0), LoopCarry(kind="removed", factor=0.0)]
    assert geometric_mean(gone, torch.float32) == LoopCarry(kind="removed", factor=0.0)


def test_the_equilibrium_of_a_damped_scale() -> None:
    # s -> c·s + a settles at a/(1 − c): the closed form that the advice names.
    trace = lv.unroll(looped(radial_step(0.8, 0.6)), TOKENS, loops=100)
    assert float(rms(trace.states[-1]).mean()) == pytest.approx(0.6 / (1 - scale_carry(trace, 100).factor), rel=1e-6)
    assert math.isclose(scale_carry(trace, 100).factor, 0.8, rel_tol=1e-6)


# Consecutive loops.

Step = Callable[[Tensor, int], Tensor]
HALF = D // 2


def normed(H: Tensor) -> Tensor:
    return F.rms_norm(H, H.shape[-1:], eps=1e-6)


def halves(H: Tensor) -> tuple[Tensor, Tensor]:
    return H[..., :HALF], H[..., HALF:]


def in_loops(step: Step, *, trained_loops: int = 4, **options: object) -> lv.Looped:
    model = looped(lambda H: H, trained_loops=trained_loops, **options)  # type: ignore[arg-type]
    return dataclasses.replace(model, step=lambda H, context, loop: step(H, loop))


def normalizing_half(H: Tensor, loop: int) -> Tensor:
    first, second = halves(H + branch(H))
    return torch.cat([normed(first), second], -1)


def normalizing_half_and_swapping(H: Tensor, loop: int) -> Tensor:
    first, second = halves(H + branch(H))
    return torch.cat([second, normed(first)], -1)


def normalizing_half_and_shifting(H: Tensor, loop: int) -> Tensor:
    first, second = halves(H + branch(H))
    return torch.cat([normed(first), second], -1).roll(1, -1)


def damping_half(H: Tensor, loop: int) -> Tensor:
    first, second = halves(H)
    return torch.cat([0.9 * first, second], -1) + branch(H)


def turning_and_normalizing_half(H: Tensor, loop: int) -> Tensor:
    """The carried half is turned by 1 radian in each of its planes."""
    first, second = halves(H + branch(H))
    x, y = second.chunk(2, -1)
    return torch.cat([normed(first), math.cos(1) * x - math.sin(1) * y, math.sin(1) * x + math.cos(1) * y], -1)


CONSECUTIVE = {
    "half of the channels normalized": (normalizing_half, "carried", 1.0),
    "half of them normalized, the others turned": (turning_and_normalizing_half, "carried", 1.0),
    "half of them damped": (damping_half, "carried", 1.0),
    # Every channel passes the norm: at the second loop, or within D of them.
    "half of them normalized, halves swapped": (normalizing_half_and_swapping, "removed", 0.0),
    "half of them normalized, channels moved on by one": (normalizing_half_and_shifting, "removed", 0.0),
    "doubled and halved alternately": (lambda H, loop: (2.0 if loop % 2 else 0.5) * H + branch(H), "carried", 1.0),
    "the first loop normalizes": (lambda H, loop: (normed(H) if loop == 1 else H) + branch(H), "carried", 1.0),
    "every other loop normalizes": (lambda H, loop: (H if loop % 2 else normed(H)) + branch(H), "removed", 0.0),
    "normalized at the boundary": (lambda H, loop: normed(H + branch(H)), "removed", 0.0),
    "pre-norm residual": (lambda H, loop: H + branch(H), "carried", 1.0),
    "pre-norm residual, large branch": (lambda H, loop: H + 1e5 * branch(H), "carried", 1.0),
    "decay": (lambda H, loop: 0.9 * H + branch(H), "damped", 0.9),
    "decay by much": (lambda H, loop: 2**-4 * H + branch(H), "damped", 2**-4),
    "added again": (lambda H, loop: 2 * H + branch(H), "amplified", 2.0),
}


@pytest.mark.parametrize("name", CONSECUTIVE)
@pytest.mark.parametrize("loops", [1, 3, 4, 32])
@pytest.mark.parametrize("start", [0.02, 500.0])
def test_scale_carried_by_consecutive_loops(name: str, loops: int, start: float) -> None:
    step, kind, factor = CONSECUTIVE[name]
    trace = lv.unroll(in_loops(step, start=start), TOKENS, loops=loops)
    found = lasting_scale(trace, available=4 * loops)
    assert found.kind == kind
    # What is left of a loss that fades as 0.9^n, over the last n of at least 64 loops, is below a thousandth.
    assert found.factor == pytest.approx(factor, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["half of the channels normalized", "decay by much", "added again"])
def test_many_consecutive_loops_stay_in_range(name: str, dtype: torch.dtype) -> None:
    """2^128 and 2^-512 are beyond the range of both dtypes."""

    def step(H: Tensor, loop: int) -> Tensor:
        exact: Step = CONSECUTIVE[name][0]
        return exact(H.double(), loop).to(dtype)

    trace = lv.unroll(in_loops(step, dtype=dtype), TOKENS, loops=64)
    found = lasting_scale(trace, available=64)
    assert (found.kind, found.doubt) == (CONSECUTIVE[name][1], None)
    assert found.factor == pytest.approx(CONSECUTIVE[name][2], rel=2 * torch.finfo(dtype).eps, abs=2**-20)


def test_a_state_that_vanishes_is_removed_and_one_that_is_zero_has_no_carry() -> None:
    trace = lv.unroll(in_loops(lambda H, loop: H if loop <= 4 else 0 * H), TOKENS)
    assert lasting_scale(trace, available=16).kind == "removed"
    assert lasting_mean(trace, available=16).kind == "removed"
    with pytest.raises(InputError, match="every token of H_4 is zero; expected a state with a scale to carry"):
        lasting_scale(lv.unroll(in_loops(lambda H, loop: 0 * H), TOKENS), available=16)


def test_loops_that_a_model_cannot_run_are_not_requested() -> None:
    factors = [1.0, 4.0, 2.0, 0.5]
    trace = lv.unroll(in_loops(lambda H, loop: factors[loop - 1] * H), TOKENS)
    found = lasting_scale(trace, available=4)
    assert (found.kind, found.factor) == ("carried", 1.0)  # loops 3 and 4, again and again


@pytest.mark.parametrize("loops", [1, 4, 5])
def test_the_mean_carried_by_consecutive_loops(loops: int) -> None:
    def mean(step: Step) -> tuple[str, float]:
        found = lasting_mean(lv.unroll(in_loops(step), TOKENS, loops=loops), available=4 * loops)
        return found.kind, found.factor

    def centered(H: Tensor) -> Tensor:
        return H - H.mean(-1, keepdim=True)

    def centering_half(H: Tensor, loop: int) -> Tensor:
        first, second = halves(H + branch(H))
        return torch.cat([centered(first), second], -1)

    first = torch.eye(D, dtype=torch.float64)[0]
    axis = first - torch.full_like(first, D**-0.5)
    mirror = torch.eye(D, dtype=torch.float64) - 2 * torch.outer(axis, axis) / axis.square().sum()

    close = lambda factor: pytest.approx(factor, abs=1e-4)  # noqa: E731
    assert mean(lambda H, loop: H + branch(H)) == ("carried", close(1.0))
    assert mean(lambda H, loop: 0.7 * H + branch(H)) == ("damped", close(0.7))
    assert mean(lambda H, loop: 2 * H + branch(H)) == ("amplified", close(2.0))
    assert mean(lambda H, loop: F.layer_norm(H + branch(H), (D,))) == ("removed", 0.0)
    assert mean(lambda H, loop: centered(H) + branch(H)) == ("removed", 0.0)
    assert mean(centering_half) == ("carried", close(1.0))
    # All of the mean goes into one channel, and comes back from it at the next loop.
    assert mean(lambda H, loop: H @ mirror + branch(H)) == ("carried", close(1.0))


def test_where_consecutive_loops_overflow_the_mean_of_single_ones_is_reported_with_a_doubt() -> None:
    # 2^20 times the state is beyond float16; twice and four times it are not.
    trace = lv.unroll(in_loops(lambda H, loop: 0.5 * H, dtype=torch.float16), TOKENS)
    found = lasting_scale(trace, available=16)
    assert (found.kind, found.factor) == ("damped", pytest.approx(0.5))
    assert found.doubt is not None
    assert "geometric mean of single loops, because consecutive loops cannot be measured: loop 1" in found.doubt


TURN = torch.linalg.qr(WEIGHT).Q


def keeping(factors: list[float], axes: Tensor) -> Step:
    """Each axis is multiplied by its own factor."""
    kept = axes @ torch.diag(torch.tensor(factors, dtype=torch.float64)) @ axes.T
    return lambda H, loop: (H.double() @ kept + branch(H.double())).to(H)


@pytest.mark.parametrize("axes", [torch.eye(D, dtype=torch.float64), TURN], ids=["channels", "any axes"])
@pytest.mark.parametrize("loops", [1, 4, 5, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("factors", "kind", "largest"),
    [
        ([0.99] * HALF + [1.0] * HALF, "carried", 1.0),
        ([0.995] * HALF + [1.0] * HALF, "carried", 1.0),
        ([0.99] * (D - 1) + [1.0], "carried", 1.0),
        ([0.99] * HALF + [0.995] * HALF, "damped", 0.995),
        ([0.99] * HALF + [1.01] * HALF, "amplified", 1.01),
        ([0.99] * D, "damped", 0.99),
    ],
)
def test_the_lasting_factor_is_that_of_the_dominant_direction(
    factors: list[float], kind: str, largest: float, dtype: torch.dtype, loops: int, axes: Tensor
) -> None:
    trace = lv.unroll(in_loops(keeping(factors, axes), dtype=dtype), TOKENS, loops=loops)
    for lasting in (lasting_scale, lasting_mean):
        found = lasting(trace, available=4 * loops)
        assert (found.kind, found.doubt) == (kind, None)
        assert found.factor == pytest.approx(largest, abs=LEAK)  # within which a factor is carried


@pytest.mark.parametrize("growing", [1.0, 5.0])
def test_what_grows_for_some_loops_and_fades_in_the_end_is_damped(growing: float) -> None:
    # A Jordan block: its n-th power has 0.8^n and n · 0.8^(n - 1), which first grows.
    fading = 0.8 * torch.eye(D, dtype=torch.float64) + growing * torch.diag(torch.ones(D // 2), D // 2).double()
    found = lasting_scale(lv.unroll(in_loops(lambda H, loop: H @ fading), TOKENS), available=16)
    assert found.kind == "damped"
    assert found.factor == pytest.approx(0.8, abs=0.02)  # n^(1/n) of 64 loops and more


def test_a_scale_that_outgrows_its_dtype_within_a_run_is_amplified() -> None:
    step = lambda H, loop: H * torch.tensor([2.0**6] * HALF + [2.0**5.99] * HALF)  # noqa: E731
    found = lasting_scale(lv.unroll(in_loops(step, dtype=torch.float32), TOKENS), available=16)
    assert found.kind == "amplified"


def test_the_dominant_direction_is_kept_most_of_all_in_the_span() -> None:
    x = torch.randn(3, D, dtype=torch.float64)
    states = [x, x @ WEIGHT, x @ WEIGHT @ WEIGHT]
    found = dominant_direction(states)
    angles = torch.linspace(0, math.pi, 20_001, dtype=torch.float64)[:, None, None]
    rivals = angles.cos() * states[0] / states[0].norm() + angles.sin() * states[1] / states[1].norm()
    best = ((rivals @ WEIGHT).norm(dim=(1, 2)) / rivals.norm(dim=(1, 2))).max()
    assert float(found.norm()) == pytest.approx(1)
    assert float((found @ WEIGHT).norm()) == pytest.approx(float(best), rel=1e-6)


def test_the_dominant_direction_of_equal_states_is_theirs() -> None:
    x = torch.randn(3, D)
    assert torch.allclose(dominant_direction([x, x, x]).abs(), (x / x.norm()).abs(), atol=1e-6)


def counted(factors: list[float]) -> tuple[lv.Looped, list[int]]:
    """A loop that multiplies each channel by its own factor, from a state of ones; and the loops it was called for."""
    calls: list[int] = []

    def step(H: Tensor, loop: int) -> Tensor:
        calls.append(loop)
        return H * torch.tensor(factors, dtype=H.dtype)

    flat = lambda tokens: (torch.ones(2, 4, D, dtype=torch.float64), None)  # noqa: E731
    return dataclasses.replace(in_loops(step), embed=flat), calls


def test_a_factor_that_does_not_settle_is_reported_with_a_doubt() -> None:
    factors = torch.linspace(0.98, 1.0, D).tolist()
    model, calls = counted(factors)
    trace = lv.unroll(model, TOKENS)
    before = len(calls)
    found = lasting_scale(trace, available=16)
    assert found.doubt is not None
    assert found.doubt.startswith("the factor still changes after 256 consecutive loops, from 0.99")
    assert len(calls) - before == 256

    def rms_after(n: int) -> float:
        return math.sqrt(math.fsum(factor ** (2 * n) for factor in factors) / D)

    found = lasting_scale(trace, available=16, most=8)
    # Loops 5..8 counted from H_4; no loop is left for the dominant direction.
    assert found.factor == pytest.approx((rms_after(12) / rms_after(8)) ** (1 / 4), rel=1e-9)
    assert found.doubt is not None
    assert found.doubt.startswith("the factor still changes after 8 consecutive loops")


@pytest.mark.parametrize("most", [8, 9, 16, 40, 100])
@pytest.mark.parametrize("loops", [1, 3, 4])
def test_no_more_loops_are_run_than_a_caller_allows(loops: int, most: int) -> None:
    model, calls = counted(torch.linspace(0.98, 1.0, D).tolist())
    trace = lv.unroll(model, TOKENS, loops=loops)
    before = len(calls)
    lasting_scale(trace, available=loops, most=most)
    least = 2 * loops * math.ceil(4 / loops)
    assert least <= len(calls) - before <= max(least, most)
