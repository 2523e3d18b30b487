"""Clamped runs whose states are known by algebra."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.measures.clamp import ClampKind, clamp_effect, clamped
from tests.loopverify.closed_form import (
    HEAD,
    TARGETS,
    TOKENS,
    D,
    looped,
    radial_step,
    raw,
    rms,
    rmsnorm,
    turn,
)

BATCHES = [(TOKENS, TARGETS)]


def cross_entropy(state: Tensor) -> float:
    """Cross-entropy of raw logits, written out."""
    return float(F.cross_entropy((state @ HEAD.T).flatten(0, 1), TARGETS.flatten()))


def plane(step: float) -> lv.Looped:
    """States in the first two channels; a loop turns them by `step` radians and doubles them."""

    def embed(tokens: Tensor) -> tuple[Tensor, None]:
        state = torch.zeros(*tokens.shape, D, dtype=torch.float64)
        state[..., 0], state[..., 1] = tokens.double().cos(), tokens.double().sin()
        return state, None

    doubled = turn(step, 2.0)
    return lv.Looped(
        embed=embed, step=lambda H, context, loop: doubled(H), readout=lambda H, *_: raw(H), trained_loops=4
    )


@pytest.mark.parametrize("kind", ["scale", "radial"])
def test_a_radial_push_stops_after_the_first_loop(kind: ClampKind) -> None:
    # Scales 2.5, 3, 3.5, 4 of the free run; all growth is radial, so that both clamps hold it at 2.5.
    model = looped(radial_step(1.0, 0.5), raw, start=2.0)
    effect = clamp_effect(model, BATCHES, kind=kind)
    u = model.embed(TOKENS)[0] / 2
    assert effect.norm_ratio == pytest.approx(2.5 / 4)
    assert effect.token_ratio == pytest.approx(2.5 / 4)
    assert effect.free_norm == pytest.approx(4 * math.sqrt(D))
    assert effect.free_loss == pytest.approx(cross_entropy(4 * u))
    assert effect.clamped_loss == pytest.approx(cross_entropy(2.5 * u))
    assert effect.loss_change == pytest.approx(cross_entropy(2.5 * u) - cross_entropy(4 * u))
    assert (effect.kind, effect.after, effect.sample.tokens) == (kind, 1, 8)


def test_a_blind_readout_does_not_notice() -> None:
    effect = clamp_effect(looped(radial_step(1.0, 5.0), rmsnorm), BATCHES)
    assert effect.norm_ratio == pytest.approx(6 / 21)
    assert effect.loss_change == pytest.approx(0, abs=1e-12)


def test_directions_go_on_while_the_scale_is_held() -> None:
    # F(H) = 2 R H: the clamped H_4 is R³ H_1, three halvings of the free one.
    model = looped(turn(0.3, 2.0), raw)
    effect = clamp_effect(model, BATCHES)
    H_1 = turn(0.3, 2.0)(model.embed(TOKENS)[0])
    assert effect.norm_ratio == pytest.approx(1 / 8)
    assert effect.clamped_loss == pytest.approx(cross_entropy(turn(0.9, 1.0)(H_1)))


def test_what_is_left_without_the_radial_part_is_the_cost_of_turning() -> None:
    # b = 2 R H − H has the turning part 2 sin θ · s, so that the scale grows by √(1 + 4 sin² θ) a loop, not by 2.
    effect = clamp_effect(plane(0.3), BATCHES, kind="radial")
    assert effect.norm_ratio == pytest.approx((math.sqrt(1 + 4 * math.sin(0.3) ** 2) / 2) ** 3)


def test_after_says_from_where_on() -> None:
    model = looped(radial_step(1.0, 0.5), raw, start=2.0)
    assert [clamp_effect(model, BATCHES, after=k).norm_ratio for k in range(4)] == pytest.approx(
        [2 / 4, 2.5 / 4, 3 / 4, 3.5 / 4]
    )


def test_every_clamped_loop_gets_its_index() -> None:
    base = looped(lambda H: H, raw)
    model = lv.Looped(
        embed=base.embed, step=lambda H, context, loop: turn(0.1 * loop, 2.0)(H), readout=base.readout, trained_loops=4
    )
    held = clamped(lv.unroll(model, TOKENS))
    # Turned by 0.1 + 0.2 + 0.3 + 0.4 in all, doubled once.
    assert torch.allclose(held.states[-1], turn(1.0, 2.0)(model.embed(TOKENS)[0]))


def test_a_few_large_tokens_decide_the_ratio_of_means_only() -> None:
    sizes = torch.tensor([1.0, 1, 1, 1, 1000], dtype=torch.float64)
    direction = torch.ones(D, dtype=torch.float64)
    model = lv.Looped(
        embed=lambda tokens: (sizes[tokens][..., None] * direction, None),
        step=lambda H, context, loop: H + direction,
        readout=lambda H, *_: raw(H),
        trained_loops=4,
    )
    effect = clamp_effect(model, BATCHES)
    s = sizes[TOKENS].flatten()
    assert effect.norm_ratio == pytest.approx(float((s + 1).sum() / (s + 4).sum()))
    assert effect.token_ratio == pytest.approx(float(((s + 1) / (s + 4)).mean()))
    assert effect.token_ratio < 0.6 < 0.97 < effect.norm_ratio


def test_a_loop_that_removes_scale_has_nothing_to_clamp() -> None:
    effect = clamp_effect(looped(lambda H: (H + turn(0.5, 3.0)(H)) / rms(H + turn(0.5, 3.0)(H)), raw), BATCHES)
    assert effect.norm_ratio == pytest.approx(1)
    assert effect.loss_change == pytest.approx(0, abs=1e-12)


def test_a_zero_token_stays_zero() -> None:
    effect = clamp_effect(looped(lambda H: 2 * H, raw, start=0.0), BATCHES)
    assert effect.token_ratio == 1
    assert effect.clamped_loss == effect.free_loss == pytest.approx(math.log(5))


def test_a_transformer_against_three_lines() -> None:
    model = lv.models.LoopedTransformer(lv.models.TransformerConfig(vocab_size=5, d_model=8, d_ff=16, init_std=0.5))
    view = model.looped()
    effect = clamp_effect(view, BATCHES)
    with torch.no_grad():
        state, context = view.embed(TOKENS)
        H = H_1 = view.step(state, context, 1)
        for loop in (2, 3, 4):
            H = F.normalize(view.step(H, context, loop), dim=-1) * H_1.norm(dim=-1, keepdim=True)
        expected = F.cross_entropy(view.readout(H, context, 4, 4).flatten(0, 1), TARGETS.flatten())
    assert effect.clamped_loss == pytest.approx(float(expected), rel=1e-5)
    assert effect.clamped_loss != pytest.approx(effect.free_loss, rel=1e-4)


def test_a_clamped_run_is_a_trace_for_any_probe() -> None:
    trace = lv.unroll(looped(radial_step(1.0, 0.5), start=2.0), TOKENS, grad=True)
    before = [state.detach().clone() for state in trace.states]
    held = clamped(trace)
    assert [float(rms(state).mean()) for state in held.states] == pytest.approx([2.0, 2.5, 2.5, 2.5, 2.5])
    assert not any(state.requires_grad for state in held.states)
    assert all(torch.equal(a, b) for a, b in zip(before, trace.states, strict=True))
    assert held.loops == 4


def test_half_precision_holds_its_scale_over_many_loops() -> None:
    trace = lv.unroll(looped(turn(0.7, 1.5), dtype=torch.bfloat16), TOKENS, loops=40)
    held = clamped(trace)
    assert held.states[-1].dtype == torch.bfloat16
    ratio = rms(held.states[-1].double()) / rms(held.states[1].double())
    assert ratio.flatten().tolist() == pytest.approx([1.0] * 8, rel=0.02)


def test_refusals() -> None:
    model = looped(lambda H: 2 * H)
    with pytest.raises(InputError, match="unknown kind of clamp 'norm'; expected one of: scale, radial"):
        clamp_effect(model, BATCHES, kind="norm")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"a clamp after loop 4 of a run of 4 loops; expected 0\.\.3, so that a loop"):
        clamp_effect(model, BATCHES, after=4)
    with pytest.raises(InputError, match=r"a clamp after loop 1 of a run of 1 loops; expected 0\.\.0"):
        clamp_effect(model, BATCHES, 1)
