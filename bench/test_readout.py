"""What stands between state and head, against one recurrent step, against its floor, and in a whole training step.

The floor is copying as many bytes as have to be moved: forward a state read and one written, backward two gradients
and the state, 5 times the size of a state; a copy of a state moves 2.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bench.contest import Contest
from bench.shapes import Shape
from loopverify.models import READOUTS, LoopedTransformer


def _norm(module: LoopedTransformer) -> nn.Module:
    return nn.Identity() if module.readout_norm is None else module.readout_norm


def _forward_and_backward(function: Callable[[Tensor], Tensor], state: Tensor) -> Callable[[], None]:
    leaf, above = state.clone().requires_grad_(), torch.randn_like(state)

    def run() -> None:
        leaf.grad = None
        function(leaf).backward(above)

    return run


@pytest.mark.parametrize("readout", READOUTS)
def test_readout(contest: Contest, large: Shape, device: str, readout: str) -> None:
    module = large.module(readout, device)
    state, context = module.embed(large.batch(device)[0])
    state = state.detach()
    copy, half = torch.empty_like(state), state.shape[1] // 2
    norm = _norm(module)
    contest(
        _forward_and_backward(norm, state),
        {
            "one recurrent step": _forward_and_backward(lambda h: module.step(h, context, 1), state),
            "its floor in bytes moved": lambda: [
                copy.copy_(state),
                copy.copy_(state),
                copy[:, :half].copy_(state[:, :half]),
            ],
        },
        label=f"readout {readout}, one exit, forward and backward",
        shape=large.label,
        rounds=large.rounds,
    )


@pytest.mark.parametrize("readout", ["rmsnorm", "layernorm"])
def test_a_normalized_readout_in_a_training_step(contest: Contest, large: Shape, device: str, readout: str) -> None:
    module = large.module(readout, device)
    state = module.embed(large.batch(device)[0])[0].detach()
    one_exit = _forward_and_backward(_norm(module), state)
    contest(
        lambda: [one_exit() for _ in range(large.preset.loops)],
        {"a training step": large.step("per_loop", readout, device)},
        label=f"readout {readout}, all exits, forward and backward",
        shape=large.label,
        rounds=large.rounds,
        goals={"a training step": 0.03},
    )
