"""Loss at every depth, in both ways, against losses written out by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.measures.variable_depth import variable_depth
from tests.loopverify.closed_form import TARGETS, TOKENS, looped, radial_step, raw, rmsnorm

BATCHES = [(TOKENS, TARGETS)]


def cross_entropy(logits: Tensor, targets: Tensor = TARGETS) -> float:
    return float(F.cross_entropy(logits.flatten(0, 1), targets.flatten()))


def test_a_raw_readout_sees_the_scale_of_every_depth() -> None:
    # H_k = (1 + k/2) u.
    model = looped(radial_step(1.0, 0.5), raw, trained_loops=3)
    depth = variable_depth(model, BATCHES)
    u = model.embed(TOKENS)[0]
    expected = [cross_entropy(raw((1 + k / 2) * u)) for k in range(1, 7)]
    assert [point.loss for point in depth.runs] == pytest.approx(expected)
    assert [point.loss for point in depth.exits] == pytest.approx(expected[:3])
    assert [point.loops for point in depth.runs] == [1, 2, 3, 4, 5, 6]
    assert [point.ratio for point in depth.runs] == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2])
    assert depth.gap == depth.run_gap == pytest.approx(expected[0] - expected[2])
    assert depth.exits[0].perplexity == pytest.approx(math.exp(expected[0]))
    assert depth.perplexity_change == pytest.approx(math.exp(expected[2]) - math.exp(expected[0]))
    assert depth.sample.loops == 6


def test_a_blind_readout_of_a_pure_push_is_the_same_at_every_depth() -> None:
    depth = variable_depth(looped(radial_step(1.0, 0.5), rmsnorm), BATCHES)
    assert depth.gap == pytest.approx(0, abs=1e-12)
    assert len({round(point.loss, 12) for point in depth.runs}) == 1


def test_the_two_readings_part_for_a_readout_normalized_at_the_last_exit_only() -> None:
    base = looped(radial_step(1.0, 0.5))
    model = lv.Looped(
        embed=base.embed,
        step=base.step,
        readout=lambda H, context, loop, loops: rmsnorm(H) if loop == loops else raw(H),
        trained_loops=2,
    )
    depth = variable_depth(model, BATCHES, 3)
    u = model.embed(TOKENS)[0]
    final = cross_entropy(raw(u))
    assert [point.loss for point in depth.exits] == pytest.approx([cross_entropy(raw(1.5 * u)), final])
    assert [point.loss for point in depth.runs] == pytest.approx([final] * 3)
    assert depth.gap == pytest.approx(cross_entropy(raw(1.5 * u)) - final)
    assert depth.run_gap == pytest.approx(0, abs=1e-12)


def test_batches_weigh_by_the_targets_that_count() -> None:
    few = TARGETS.clone()
    few[0], few[1, :2] = -100, -100
    model = looped(lambda H: H.clone(), raw, trained_loops=1)
    depth = variable_depth(model, [(TOKENS, TARGETS), (TOKENS, few)])
    logits = raw(model.embed(TOKENS)[0])
    together = cross_entropy(torch.cat([logits, logits]), torch.cat([TARGETS, few]))
    assert depth.exits[0].loss == pytest.approx(together)
    assert depth.exits[0].loss != pytest.approx((cross_entropy(logits) + cross_entropy(logits, few)) / 2)


def test_overflow_is_not_a_number_from_its_depth_on() -> None:
    depth = variable_depth(looped(lambda H: 1e200 * H, raw, trained_loops=1), BATCHES, 3)
    assert [math.isfinite(point.loss) for point in depth.runs] == [True, False, False]
    assert depth.runs[0].perplexity == math.inf


def test_refuses_fewer_loops_than_the_exits_need() -> None:
    with pytest.raises(
        InputError, match="loops is 3; expected at least the trained loops, 4, whose exits are measured"
    ):
        variable_depth(looped(lambda H: 2 * H), BATCHES, 3)
