"""Exit losses against a cross-entropy written out by hand."""

from __future__ import annotations

import pytest
import torch

from loopverify import Trace, models, unroll
from loopverify.errors import InputError
from loopverify.probes.depth import exit_losses


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
