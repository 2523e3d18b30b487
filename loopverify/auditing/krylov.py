"""The direction that a map keeps most, among those that some of its states span."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from loopverify.theory.polar import at_least_float32

__all__ = ["kept_most"]

SMALL = 1e-4
"""The part of a span that is smaller than this is rounding, and what is left of the updates of a large state."""


def kept_most(states: Sequence[Tensor]) -> Tensor:
    """The largest singular direction of a map, restricted to the span of the states that it was given.

    Powers of a map approach its leading direction as slowly as the others fade, at 0.99 a loop by half in seventy. The
    span of n + 1 states in a row contains it exactly where no more than n factors fade, however slowly (Krylov).

    Args:
        states: two or more tensors of one shape, each of which one linear map made of the one before.

    Returns:
        Σ c_j s_j over all states but the last, of the shape of one and of norm 1, with the c that maximize
        ||Σ c_j s_{j+1}|| / ||Σ c_j s_j||.
    """
    columns = torch.stack([at_least_float32(state).flatten() for state in states], dim=-1)
    given, made = columns[:, :-1], columns[:, 1:]
    basis, sizes, mixtures = torch.linalg.svd(given, full_matrices=False)
    rank = int((sizes > sizes[0] * max(SMALL, math.sqrt(torch.finfo(states[0].dtype).eps))).sum())
    image = made @ (mixtures[:rank].mT / sizes[:rank])  # of each direction of the basis
    kept: Tensor = torch.linalg.svd(image, full_matrices=False).Vh[0]
    direction: Tensor = basis[:, :rank] @ kept
    return direction.view_as(states[0])
