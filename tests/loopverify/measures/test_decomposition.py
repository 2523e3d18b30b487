"""Radial and turning parts over long runs, against recurrences solved by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.measures.decomposition import decompose
from tests.loopverify.closed_form import TARGETS, TOKENS, D, looped, radial_step, raw, rms

BATCHES = [(TOKENS, TARGETS)]


def spiral(push: float, sideways: float, start: float = 1.0) -> lv.Looped:
    """States in the first two channels, to which a loop adds push·u and sideways·v, v at right angles to u: both parts
    of the update have a size (rms) that does not depend on the state."""

    def embed(tokens: Tensor) -> tuple[Tensor, None]:
        state = torch.zeros(*tokens.shape, D, dtype=torch.float64)
        state[..., 0] = start * math.sqrt(D)
        return state, None

    def step(state: Tensor, context: object, loop: int) -> Tensor:
        u = state / rms(state)
        v = torch.zeros_like(u)
        v[..., 0], v[..., 1] = -u[..., 1], u[..., 0]
        return state + push * u + sideways * v

    return lv.Looped(embed=embed, step=step, readout=lambda H, *_: raw(H), trained_loops=4)


def test_a_pure_push() -> None:
    found = decompose(looped(radial_step(1.0, 0.3)), BATCHES)
    assert (len(found.loops), found.first, len(found.settled), found.channels) == (30, 10, 21, D)
    assert found.a_rad == pytest.approx(0.3)
    assert found.d_a_rad == pytest.approx(2.4)  # ⟨u, b⟩ of rms-1 directions, the text's unit
    assert found.b_perp == pytest.approx(0, abs=1e-12)
    assert found.b_rms == found.ratio * 0.3 == pytest.approx(0.3)
    assert found.growth == pytest.approx(0.3)
    assert found.growth_gap == pytest.approx(0, abs=1e-9)
    assert found.angular_slope is found.angular_correlation is None  # nothing turns
    assert [loop.scale for loop in found.loops] == pytest.approx([1 + 0.3 * k for k in range(30)])


def test_the_spiral_of_the_129m_row() -> None:
    # Table 12, 129M per-loop + RMSNorm: a_rad 13.99 and rms(b_perp) 14.86 make rms(b) 20.41, ratio 1.46.
    found = decompose(spiral(13.99, 14.86), BATCHES)
    assert found.a_rad == pytest.approx(13.99)
    assert found.b_perp == pytest.approx(14.86)
    assert found.b_rms == pytest.approx(20.41, abs=0.005)
    assert found.ratio == pytest.approx(1.46, abs=0.005)
    # The recurrence s -> √((s + a)² + c²), and the chord 2 sin(angle/2) of each turn.
    s = [1.0]
    for _ in range(30):
        s.append(math.hypot(s[-1] + 13.99, 14.86))
    chords = [2 * math.sin(math.atan2(14.86, s[k] + 13.99) / 2) for k in range(30)]
    assert [loop.scale for loop in found.loops] == pytest.approx(s[:-1])
    assert [loop.update.angular_step for loop in found.loops] == pytest.approx(chords)
    assert found.growth == pytest.approx((s[30] - s[9]) / 21)
    assert found.growth_gap == pytest.approx(1 - 13.99 / found.growth)
    logs = np.log([1 / x for x in s[9:30]]), np.log(chords[9:])
    assert found.angular_slope == pytest.approx(np.polyfit(*logs, 1)[0])
    assert found.angular_correlation == pytest.approx(np.corrcoef(*logs)[0, 1])
    # Once the scale is large the steps shrink like 1/s: Lemma 2.
    assert found.angular_slope == pytest.approx(1, abs=0.1)
    assert found.angular_correlation > 0.999


def test_an_update_proportional_to_the_scale_turns_by_a_constant_angle() -> None:
    # b = c·H⟂: the angle does not depend on s although s grows, and the slope says so.
    def step(state: Tensor) -> Tensor:
        turned = torch.zeros_like(state)
        turned[..., 0], turned[..., 1] = -state[..., 1], state[..., 0]
        return state + 0.2 * turned

    model = spiral(0, 0)
    found = decompose(
        lv.Looped(embed=model.embed, step=lambda H, *_: step(H), readout=model.readout, trained_loops=4), BATCHES
    )
    assert found.angular_slope == pytest.approx(0, abs=1e-9)
    assert found.a_rad == pytest.approx(0, abs=1e-12)


def test_a_removed_scale_has_no_law() -> None:
    found = decompose(looped(lambda H: H / rms(H), start=3.0), BATCHES, 12)
    assert found.angular_slope is found.angular_correlation is None
    assert found.loops[0].update.a_rad == pytest.approx(-2)
    assert found.growth == pytest.approx(0, abs=1e-12)


def test_no_update_at_all() -> None:
    found = decompose(looped(lambda H: H.clone()), BATCHES, 3, first=1)
    assert (found.a_rad, found.b_rms, found.growth, found.growth_gap) == (0, 0, 0, 0)
    assert found.ratio == math.inf


def test_averages_begin_with_the_first_settled_loop() -> None:
    base = looped(lambda H: H)
    model = lv.Looped(
        embed=base.embed, step=lambda H, context, loop: H + loop * H / rms(H), readout=base.readout, trained_loops=4
    )
    assert decompose(model, BATCHES).a_rad == pytest.approx(20)  # the mean of 10..30
    assert decompose(model, BATCHES, 5, first=2).a_rad == pytest.approx(3.5)
    assert decompose(model, BATCHES, 5, first=5).angular_slope is None  # one loop draws no line


def test_means_are_over_tokens_and_inverse_scales_are_averaged_as_such() -> None:
    sizes = torch.tensor([1.0, 2, 4, 8, 16], dtype=torch.float64)
    model = lv.Looped(
        embed=lambda tokens: (sizes[tokens][..., None].expand(*tokens.shape, D).clone(), None),
        step=lambda H, *_: 1.5 * H,
        readout=lambda H, *_: raw(H),
        trained_loops=1,
    )
    batches = [(TOKENS, TARGETS), (TOKENS[:1, :1], TARGETS[:1, :1])]
    first = decompose(model, batches, 1, first=1).loops[0]
    s = torch.cat([sizes[TOKENS].flatten(), sizes[:1]])  # nine tokens, of two batches
    assert first.scale == pytest.approx(float(s.mean()))
    assert first.inverse_scale == pytest.approx(float((1 / s).mean()))
    assert first.update.a_rad == first.update.growth == pytest.approx(float(s.mean() / 2))


def test_a_transformer_against_three_lines() -> None:
    module = lv.models.LoopedTransformer(lv.models.TransformerConfig(vocab_size=5, d_model=8, d_ff=16, init_std=0.5))
    found = decompose(module.looped(), BATCHES, 6, first=3)
    states = lv.unroll(module.double().looped(), TOKENS, 6).states
    expected = []
    for H, after in itertools.pairwise(states[2:]):
        u, b = H / H.square().mean(-1, keepdim=True).sqrt(), after - H
        a = (u * b).mean(-1, keepdim=True)
        expected.append([float(x) for x in (a.mean(), rms(b - a * u).mean(), rms(b).mean())])
    assert (found.a_rad, found.b_perp, found.b_rms) == pytest.approx(np.mean(expected, axis=0), rel=1e-4)
    assert abs(found.a_rad) > 0.01


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"first is 31; expected a loop 1\.\.30 of the run"):
        decompose(looped(lambda H: 2 * H), BATCHES, first=31)
    with pytest.raises(InputError, match=r"H_2 is not finite; expected a run that stays finite. Decompose fewer loops"):
        decompose(looped(lambda H: 1e200 * H), BATCHES)
