"""The differences between two states, and between two sets of logits, token by token.

Shapes: B batch, T tokens, D channels, V vocabulary. All differences are computed in float64 on the CPU, regardless of
dtypes and devices.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from loopverify.arguments import IGNORE, check_vocabulary
from loopverify.comparing.comparison import Gap, LoopGaps
from loopverify.errors import InputError
from loopverify.theory import polar

__all__ = ["check_sizes", "loop_gaps", "relative_distance"]


def loop_gaps(
    loop: int,
    states: tuple[Tensor, Tensor] | None,
    logits: tuple[Tensor, Tensor] | None,
    *,
    targets: Tensor | None,
    eps: float,
    tolerance: float,
) -> LoopGaps:
    """The differences at one loop between states (B, T, D) and logits (B, T, V) of a and b; either may be None.

    Raises:
        InputError: the shapes of a and b differ, or targets are outside the vocabulary.
    """
    state = scale = direction = shown = flips = entropy = None
    if states is not None:
        state, scale, direction = _state_gaps(*_exact(states, f"H_{loop}", "channels"), eps)
    if logits is not None:
        a, b = _exact(logits, f"the logits of exit {loop}", "vocabulary")
        shown = _worst((b - a).abs().amax(-1), a.abs().amax(-1), eps)
        flips = int((a.argmax(-1) != b.argmax(-1)).sum())
        entropy = None if targets is None else _cross_entropy(b, targets) - _cross_entropy(a, targets)
    return LoopGaps(
        loop=loop,
        state=state,
        scale=scale,
        direction=direction,
        logits=shown,
        argmax_flips=flips,
        cross_entropy=entropy,
        tolerance=tolerance,
    )


def relative_distance(a: Tensor, b: Tensor) -> float:
    """rms(b − a) / rms(a) of residual outputs (B, T, D), over all tokens together, since single ones may be zero."""
    a, b = a.detach().cpu().double(), b.detach().cpu().double()
    distance, size = float((b - a).square().mean().sqrt()), float(a.square().mean().sqrt())
    return distance if distance == 0 else distance / size if size else torch.inf


def _state_gaps(a: Tensor, b: Tensor, eps: float) -> tuple[Gap, Gap, Gap]:
    of_a, of_b = polar.split(a), polar.split(b)
    return (
        _worst(polar.scale(b - a), of_a.scale, eps),
        _worst((of_b.scale - of_a.scale).abs(), of_a.scale, eps),
        _worst(polar.scale(of_b.direction - of_a.direction), torch.ones_like(of_a.scale), eps),
    )


def _exact(pair: tuple[Tensor, Tensor], what: str, last: str) -> tuple[Tensor, Tensor]:
    a, b = (tensor.detach().cpu().double() for tensor in pair)
    check_sizes(a, b, what, last)
    return a, b


def check_sizes(a: Tensor, b: Tensor, what: str, last: str) -> None:
    """Raise an InputError that names both shapes unless they are equal."""
    if a.shape != b.shape:
        raise InputError(
            f"{what} are {tuple(a.shape)} in a and {tuple(b.shape)} in b; expected one shape, the {last} last: "
            "models of different sizes cannot be compared loop by loop"
        )


def _worst(distance: Tensor, size: Tensor, eps: float) -> Gap:
    """The largest relative distance over tokens (B, T); NaN counts as infinite."""
    error = torch.where(distance == 0, distance, distance / size).nan_to_num(nan=torch.inf)
    place = int(error.argmax())
    worst = float(error.flatten()[place])
    return Gap(error=worst, ulps=worst / eps, token=divmod(place, error.shape[1]))


def _cross_entropy(logits: Tensor, targets: Tensor) -> float:
    targets = targets.cpu()
    check_vocabulary(targets, logits.shape[-1])
    return float(F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE))
