"""Restore the caller's model and random state after a check."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from loopverify.looped import Looped
from loopverify.readonly import untouched

__all__ = ["preserved", "same", "tensors_of"]


@contextmanager
def preserved(model: Looped, seed: int) -> Iterator[None]:
    """`loopverify.readonly.untouched` for faulty models: it also restores parameters and Python's random state.

    Parameters are compared with copies, since a change through `.data` does not increase version counters. Gradients
    are not restored, since checks never accumulate any.
    """
    parameters = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    python_state = random.getstate()
    try:
        with untouched(model, seed):
            yield
    finally:
        random.setstate(python_state)
        with torch.no_grad():
            for parameter, copy in parameters:
                if not same(parameter, copy):
                    parameter.copy_(copy)


def tensors_of(model: Looped) -> list[tuple[str, Tensor]]:
    """Every parameter and buffer of the model, once, by name."""
    held = nn.ModuleList(model.modules())
    named = [*held.named_parameters(), *held.named_buffers()]
    return [(name.partition(".")[2], tensor) for name, tensor in named]


def same(tensor: Tensor, copy: Tensor) -> bool:
    """Whether two tensors hold the same values. NaN equals NaN here: only a change matters."""
    return tensor.shape == copy.shape and bool(((tensor == copy) | ((tensor != tensor) & (copy != copy))).all())
