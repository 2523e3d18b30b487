"""Updates in rms units, and growth by sublayer."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.auditing.ledger import attribute, updates
from loopverify.errors import InputError
from tests.loopverify.closed_form import TOKENS, D, looped, radial_step, rms, turn


def test_a_radial_push_is_all_a_rad() -> None:
    for update in updates(lv.unroll(looped(radial_step(1.0, 0.3)), TOKENS, loops=3)):
        assert update.a_rad == pytest.approx(0.3)  # <u, b>/d: not 8 · 0.3, nor √8 · 0.3
        assert update.b_rms == pytest.approx(0.3)
        assert update.b_perp == pytest.approx(0, abs=1e-12)
        assert update.growth == pytest.approx(0.3)
        assert update.remainder == pytest.approx(0, abs=1e-12)
        assert update.angular_step == pytest.approx(0, abs=1e-12)


def test_units_of_a_hand_made_update() -> None:
    # H = (3, 0, ..., 0)·√8/√8 has rms 3/√8; b = (0, 4, 0, ...) turns it: ||H'||_2 = 5.
    def embed(tokens: Tensor) -> tuple[Tensor, None]:
        state = torch.zeros(*tokens.shape, 8, dtype=torch.float64)
        state[..., 0] = 3
        return state, None

    def step(state: Tensor, context: object, loop: int) -> Tensor:
        added = torch.zeros_like(state)
        added[..., 1] = 4
        return state + added

    model = lv.Looped(embed=embed, step=step, readout=lambda H, context, loop, loops: H, trained_loops=1)
    (update,) = updates(lv.unroll(model, TOKENS))
    root = math.sqrt(8)
    assert update.a_rad == 0
    assert update.b_perp == pytest.approx(4 / root)
    assert update.growth == pytest.approx(2 / root)
    assert update.remainder == pytest.approx(2 / root)  # ρ = 5 − 3, in rms units
    assert update.growth <= update.remainder_bound + 1e-12
    # The angle has cosine 3/5, so the chord of two unit vectors is √(2 − 6/5), whatever d is.
    assert update.angular_step == pytest.approx(math.sqrt(2 - 6 / 5))


def test_angular_step_of_a_rotation() -> None:
    (update,) = updates(lv.unroll(looped(turn(0.3, 5.0)), TOKENS, loops=1))
    start, _ = looped(turn(0.3, 5.0)).embed(TOKENS)
    in_plane = start[..., :2].norm(dim=-1) / start.norm(dim=-1)
    assert update.angular_step == pytest.approx(float((2 * math.sin(0.15) * in_plane).mean()))


def test_growth_adds_up_to_the_change_of_scale() -> None:
    model = lv.models.LoopedTransformer(lv.models.TransformerConfig(vocab_size=5, d_model=8, d_ff=16, init_std=0.4))
    trace = lv.unroll(model.looped(), TOKENS)
    total = sum(update.growth for update in updates(trace))
    assert total == pytest.approx(float((rms(trace.states[-1]) - rms(trace.states[0])).mean()), rel=1e-5)
    for update in updates(trace):
        assert update.growth == pytest.approx(update.a_rad + update.remainder, rel=1e-4)
        assert 0 <= update.remainder <= update.remainder_bound * (1 + 1e-5)


def culprit() -> lv.Looped:
    """Sublayer 'pusher' adds 0.7 u; 'idle' adds nothing; 'turner' adds a vector at right angles to the stream."""

    def branches(state: Tensor, context: object, loop: int) -> list[tuple[str, Tensor]]:
        idle = torch.zeros_like(state)
        pusher = 0.7 * state / rms(state)
        stream = state + pusher
        swapped = torch.cat((-stream[..., D // 2 :], stream[..., : D // 2]), -1)
        return [("idle", idle), ("pusher", pusher), ("turner", 0.01 * swapped)]

    def step(state: Tensor, context: object, loop: int) -> Tensor:
        return state + sum(output for _, output in branches(state, context, loop))

    return dataclasses.replace(looped(radial_step(1.0, 0.0)), step=step, branches=branches)


def test_growth_is_attributed_to_the_sublayer_that_causes_it() -> None:
    trace = lv.unroll(culprit(), TOKENS)
    for loop, update in enumerate(updates(trace), start=1):
        shares = attribute(trace, loop)
        assert list(shares) == ["idle", "pusher", "turner"]
        assert shares["idle"] == 0
        assert shares["pusher"] == pytest.approx(0.7)
        before = float(rms(trace.states[loop - 1]).mean()) + 0.7
        assert shares["turner"] == pytest.approx(before * (math.sqrt(1 + 1e-4) - 1), rel=1e-6)
        assert sum(shares.values()) == pytest.approx(update.growth)


def test_branches_that_miss_the_state_are_refused() -> None:
    model = culprit()
    # Captured before the gate: half of what the pusher adds.
    halved = lambda H, context, loop: [(n, b / 2 if n == "pusher" else b) for n, b in model.branches(H, context, loop)]  # noqa: E731
    trace = lv.unroll(dataclasses.replace(model, branches=halved), TOKENS)
    with pytest.raises(InputError, match=r"branches of loop 2 miss the state by .* of its size; expected H_2 = H_1"):
        attribute(trace, 2)


def test_a_model_without_branches_says_so() -> None:
    with pytest.raises(InputError, match="closed form declares no branches"):
        attribute(lv.unroll(looped(radial_step(1.0, 0.1)), TOKENS), 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_reference_model_s_branches_hold_in_half_precision(dtype: torch.dtype) -> None:
    config = lv.models.TransformerConfig(vocab_size=5, d_model=64, layers=6, init_std=0.3)
    trace = lv.unroll(lv.models.LoopedTransformer(config).to(dtype).looped(), TOKENS)
    shares = attribute(trace, 3)
    assert len(shares) == 12
    assert sum(shares.values()) == pytest.approx(
        updates(trace)[2].growth, rel=0.05 if dtype == torch.bfloat16 else 1e-4
    )
