"""How large the states are: the distribution of tokenwise norms, with its unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from loopverify.errors import InputError, unknown
from loopverify.theory.polar import at_least_float32

__all__ = ["TokenNorms", "token_norms"]

Unit = Literal["l2", "rms"]


@dataclass(frozen=True, kw_only=True)
class TokenNorms:
    """Tokenwise norms of one state: ||H||_2 ('l2', the paper's tables) or ||H||_2 / sqrt(d) ('rms', its lemmas)."""

    mean: float
    median: float
    p99: float
    max: float
    std: float
    """Population standard deviation over tokens."""
    tokens: int
    unit: Unit


def token_norms(state: Tensor, unit: Unit = "l2") -> TokenNorms:
    """Norms of the tokens of a state (..., D), over the last dimension.

    Quantiles interpolate linearly between order statistics. Half precisions are measured in float32.

    Raises:
        InputError: the state is empty or not floating, or the unit is unknown.
    """
    if unit not in ("l2", "rms"):
        raise unknown("unit", unit, ("l2", "rms"))
    if not state.is_floating_point() or state.ndim < 1 or 0 in state.shape:
        raise InputError(f"state is {state.dtype} {tuple(state.shape)}; expected a non-empty floating tensor (..., D)")
    with torch.no_grad():
        norms = at_least_float32(state).norm(dim=-1).flatten()
        if unit == "rms":
            norms = norms / math.sqrt(state.shape[-1])
        ordered = norms.sort().values  # torch.quantile takes at most 2^24 values
        summary = torch.stack(
            [norms.mean(), _quantile(ordered, 0.5), _quantile(ordered, 0.99), ordered[-1], norms.std(correction=0)]
        )
        mean, median, p99, maximum, std = summary.tolist()  # one transfer from the device
    return TokenNorms(mean=mean, median=median, p99=p99, max=maximum, std=std, tokens=norms.numel(), unit=unit)


def _quantile(ordered: Tensor, q: float) -> Tensor:
    place = q * (ordered.numel() - 1)
    low = math.floor(place)
    high = min(low + 1, ordered.numel() - 1)
    return torch.lerp(ordered[low], ordered[high], place - low)
