"""r_k and g_k against Lemma 1, whose radial signal is known in closed form, and against a gradient written out."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import loopverify as lv
from loopverify.measures.radial import radial_summary
from tests.loopverify.closed_form import HEAD, TARGETS, TOKENS, D, looped, radial_step, raw, rms, rmsnorm

BATCHES = [(TOKENS, TARGETS)]


def sigma(logits: Tensor, targets: Tensor = TARGETS) -> float:
    """Mean over tokens of E_p[z] − z_y: what dCE/d log s is for a raw readout."""
    counted = targets >= 0
    chosen = logits.gather(-1, targets.clamp_min(0)[..., None])[..., 0]
    return float(((logits.softmax(-1) * logits).sum(-1) - chosen)[counted].mean())


def fraction(state: Tensor) -> float:
    """Mean |cos| between a raw readout's gradient W'(p − e_y) and the state."""
    g = (raw(state).softmax(-1) - F.one_hot(TARGETS, 5)) @ HEAD
    return float(F.cosine_similarity(g, state, dim=-1).abs().mean())


def test_raw_exits_carry_the_whole_signal() -> None:
    model = looped(radial_step(1.0, 0.5), raw, start=2.0)
    found = radial_summary(model, BATCHES)
    u = model.embed(TOKENS)[0] / 2
    states = [(2 + k / 2) * u for k in range(1, 5)]
    assert [view.signal for view in found.exits] == pytest.approx([sigma(raw(H)) for H in states])
    assert [view.fraction for view in found.exits] == pytest.approx([fraction(H) for H in states])
    assert (found.r_1, found.r_K) == (found.exits[0].fraction, found.exits[3].fraction)
    assert found.g_K == found.exits[3].signal
    assert found.norm == pytest.approx(4 * D**0.5)
    assert found.exits[0].reading.startswith("above it by ×")


@pytest.mark.parametrize("ratio", [0.0, 0.1, 2.0])
def test_behind_a_norm_its_epsilon_is_all_that_is_left(ratio: float) -> None:
    # Lemma 1: ν·σ with ν = ε/(s² + ε), of the normalized logits; s = 1 at the last exit.
    model = looped(lambda H: H.clone(), lambda H: rmsnorm(H, eps=ratio))
    found = radial_summary(model, BATCHES)
    normalized = rmsnorm(model.embed(TOKENS)[0], eps=ratio)
    assert found.g_K == pytest.approx(ratio / (1 + ratio) * sigma(normalized), abs=1e-12)
    if ratio == 0:
        assert found.r_K <= found.floor
        assert found.exits[-1].reading == "at the floor"


def test_final_only_is_raw_at_first_and_blind_at_last() -> None:
    config = lv.models.TransformerConfig(vocab_size=5, d_model=8, d_ff=16, readout="final_only", init_std=0.5)
    found = radial_summary(lv.models.LoopedTransformer(config).looped(), BATCHES)
    assert found.r_1 > 1e-2
    assert found.r_K < 1e-4  # ε = 1e-6 against a mean square near 1
    assert found.sample.dtype == "float32"
    assert found.floor == pytest.approx(2 * 2**-23 / 8**0.5)


def test_later_loops_have_no_part_in_it() -> None:
    # Through a step that doubles, H_1 would also hear of the losses of H_2..H_4. Its own loss alone is σ(H_1).
    model = looped(lambda H: 2 * H, raw)
    assert radial_summary(model, BATCHES).exits[0].signal == pytest.approx(sigma(raw(2 * model.embed(TOKENS)[0])))


def test_batches_weigh_by_the_targets_that_count() -> None:
    few = TARGETS.clone()
    few[0], few[1, :2] = -100, -100
    model = looped(lambda H: H.clone(), raw)
    found = radial_summary(model, [(TOKENS, TARGETS), (TOKENS, few)])
    one, other = radial_summary(model, [(TOKENS, TARGETS)]), radial_summary(model, [(TOKENS, few)])
    logits = raw(model.embed(TOKENS)[0])
    assert found.g_K == pytest.approx(sigma(torch.cat([logits, logits]), torch.cat([TARGETS, few])))
    assert found.r_K == pytest.approx((8 * one.r_K + 2 * other.r_K) / 10)


def test_an_exit_without_gradient_is_not_taken_for_a_blind_one() -> None:
    model = dataclasses.replace(looped(lambda H: 2 * H), readout=lambda H, *_: raw(H.detach() / rms(H.detach())))
    found = radial_summary(model, BATCHES)
    assert (found.r_1, found.r_K, found.g_K) == (None, None, 0)
    assert found.exits[0].reading == "no gradient"


def test_in_bfloat16_the_floor_is_that_of_bfloat16() -> None:
    found = radial_summary(looped(radial_step(1.0, 50.0), rmsnorm, dtype=torch.bfloat16), BATCHES)
    assert found.sample.dtype == "bfloat16"
    assert found.floor == pytest.approx(2 * 2**-7 / D**0.5)
    assert found.r_K <= found.floor
