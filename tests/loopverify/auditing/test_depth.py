"""Exit losses against a cross-entropy written out by hand."""

from __future__ import annotations

import pytest
import torch

from loopverify import Trace, models, unroll
from loopverify.auditing.depth import depth_use, exit_losses, overshoot
from loopverify.errors import InputError


def _trace_and_targets() -> tuple[Trace, torch.Tensor]:
    model = models.LoopedTransformer(models.TransformerConfig(vocab_size=11, d_model=8, heads=2, d_ff=16))
    tokens = torch.randint(11, (2, 5))
    return unroll(model.looped(), tokens, loops=3), torch.randint(11, (2, 5))


def _probabilities(trace: Trace, loop: int) -> torch.Tensor:
    return trace.logits(loop).detach().double().softmax(-1)


def test_exit_losses_are_the_mean_surprise_of_each_exit() -> None:
    trace, targets = _trace_and_targets()
    measured = exit_losses(trace, targets)
    assert len(measured) == 3
    for k, nats in enumerate(measured, start=1):
        p = _probabilities(trace, k)
        expected = -torch.stack([p[b, t, targets[b, t]].log() for b in range(2) for t in range(5)]).mean()
        assert nats == pytest.approx(float(expected), rel=1e-5)


def test_exit_losses_leave_out_ignored_targets() -> None:
    trace, targets = _trace_and_targets()
    targets[1] = -100
    p = _probabilities(trace, 3)
    expected = -torch.stack([p[0, t, targets[0, t]].log() for t in range(5)]).mean()
    assert exit_losses(trace, targets)[2] == pytest.approx(float(expected), rel=1e-5)


def test_exit_losses_refuse_targets_of_another_shape() -> None:
    trace, targets = _trace_and_targets()
    with pytest.raises(InputError, match=r"targets are torch.int64 \(2, 4\); expected int64 \(2, 5\)"):
        exit_losses(trace, targets[:, :4])


def test_depth_use_is_the_gain_from_the_first_to_the_last_exit() -> None:
    trace, targets = _trace_and_targets()
    use = depth_use(trace, targets)
    assert use.losses == tuple(exit_losses(trace, targets))
    assert use.gain == use.losses[0] - use.losses[2]


def test_overshoot_runs_are_runs_of_their_own() -> None:
    # final_only normalizes the last exit of a run: a run of 2 loops differs from exit 2 of a longer run.
    config = models.TransformerConfig(vocab_size=11, d_model=8, heads=2, d_ff=16, readout="final_only", trained_loops=2)
    model = models.LoopedTransformer(config).looped()
    tokens, targets = torch.randint(11, (2, 5)), torch.randint(11, (2, 5))
    points = overshoot(unroll(model, tokens, loops=4), targets)
    assert [(point.loops, point.ratio) for point in points] == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]
    for point in points:
        alone = exit_losses(unroll(model, tokens, loops=point.loops), targets)
        assert point.loss == pytest.approx(alone[-1], rel=1e-6)
    within = exit_losses(unroll(model, tokens, loops=4), targets)
    assert abs(points[1].loss - within[1]) > 1e-4


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    trace, _ = _trace_and_targets()
    assert trace.first(2).loops == 2
    assert all(a is b for a, b in zip(trace.first(2).states, trace.states, strict=False))
    with pytest.raises(InputError, match=r"the first 4 loops of a trace of 3; expected an integer 1\.\.3"):
        trace.first(4)
