"""CE, entropy and margin of a rescaled state against closed forms and torch's own distributions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import loopverify as lv
from loopverify.errors import InputError
from loopverify.measures.scale_sweep import PAPER_ALPHAS, scale_sweep
from tests.loopverify.closed_form import TARGETS, TOKENS, looped, radial_step, raw, rmsnorm

BATCHES = [(TOKENS, TARGETS)]


def test_the_paper_s_factors_span_a_hundredfold() -> None:
    assert (len(PAPER_ALPHAS), PAPER_ALPHAS[0], PAPER_ALPHAS[4], PAPER_ALPHAS[-1]) == (9, 0.1, 1, 10)
    ratios = {round(b / a, 9) for a, b in itertools.pairwise(PAPER_ALPHAS)}
    assert ratios == {round(10**0.25, 9)}


def test_a_raw_exit_sharpens_with_scale() -> None:
    model = looped(radial_step(1.0, 0.5), raw)
    found = scale_sweep(model, BATCHES)
    z = raw(3 * model.embed(TOKENS)[0])  # H_4 = 3 u
    top = z.sort(-1, descending=True).values
    for point in found.points:
        assert point.margin == pytest.approx(point.alpha * float((top[..., 0] - top[..., 1]).mean()))
        assert point.entropy == pytest.approx(
            float(torch.distributions.Categorical(logits=point.alpha * z).entropy().mean())
        )
        assert point.loss == pytest.approx(float(F.cross_entropy(point.alpha * z.flatten(0, 1), TARGETS.flatten())))
    assert [point.alpha for point in found.points] == list(PAPER_ALPHAS)
    assert found.loop == 4
    assert found.loss_span > 1


def test_a_normalized_exit_stays_flat() -> None:
    found = scale_sweep(looped(radial_step(1.0, 0.5), rmsnorm), BATCHES)
    assert found.loss_span == pytest.approx(0, abs=1e-12)
    assert found.points[0].entropy == pytest.approx(found.points[-1].entropy)
    assert found.points[0].margin == pytest.approx(found.points[-1].margin)


def test_a_head_that_says_nothing() -> None:
    found = scale_sweep(looped(lambda H: 2 * H, lambda H: 0 * raw(H)), BATCHES)
    for point in found.points:
        assert (point.loss, point.entropy) == pytest.approx((math.log(5), math.log(5)))
        assert point.margin == 0


def test_an_earlier_exit_is_read_as_the_model_reads_it() -> None:
    config = lv.models.TransformerConfig(vocab_size=5, d_model=8, d_ff=16, readout="final_only", init_std=0.5)
    model = lv.models.LoopedTransformer(config).looped()
    assert scale_sweep(model, BATCHES, loop=3).loss_span > 0.1  # raw
    # ε = 1e-6 of the last exit's norm shows at α = 0.1 as 1e-4 of states near 1.
    assert scale_sweep(model, BATCHES).loss_span < 1e-3
    assert scale_sweep(model, BATCHES, 3).loss_span < 1e-3  # a run of 3 ends there


def test_only_targets_that_count_are_averaged() -> None:
    few = TARGETS.clone()
    few[0] = -100
    model = looped(lambda H: H.clone(), raw)
    (point,) = scale_sweep(model, [(TOKENS, few)], alphas=[2.0]).points
    z = 2 * raw(model.embed(TOKENS)[0])[1]
    assert point.loss == pytest.approx(float(F.cross_entropy(z, TARGETS[1])))
    assert point.entropy == pytest.approx(float(torch.distributions.Categorical(logits=z).entropy().mean()))


@pytest.mark.parametrize("alphas", [[], [0.0], [1.0, -1.0], [math.inf], [math.nan]])
def test_refuses_factors_that_are_none(alphas: list[float]) -> None:
    with pytest.raises(InputError, match="expected at least one, each finite and > 0"):
        scale_sweep(looped(lambda H: 2 * H), BATCHES, alphas=alphas)


@pytest.mark.parametrize("loop", [0, 5])
def test_refuses_an_exit_outside_the_run(loop: int) -> None:
    with pytest.raises(InputError, match=rf"exit {loop} of a run of 4 loops; expected 1\.\.4"):
        scale_sweep(looped(lambda H: 2 * H), BATCHES, loop=loop)
