"""By which law the scale grows with the number of loops: constant, linear, square root or exponential."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.theory import polar

__all__ = ["RESOLUTION", "GrowthLaw", "Law", "fit_growth", "mean_scales"]

Law = Literal["constant", "linear", "sqrt", "exponential"]
_Array = npt.NDArray[np.float64]

RESOLUTION = 0.01
"""Scales that stay within 1 % (rms) of one value are constant, whatever pattern the residual shows."""


@dataclass(frozen=True, kw_only=True)
class GrowthLaw:
    """The law that fits the scales s_1..s_N best. Errors are the rms over loops of (fit − s)/s."""

    law: Law
    error: float
    coefficients: tuple[float, ...]
    """constant: (c,); the others (a, b) of a + b·k, a + b·√k, a·exp(b·k)."""
    runner_up: Law
    runner_up_error: float
    errors: Mapping[Law, float]
    """The errors of all four laws."""
    loops: int
    """N."""


def mean_scales(trace: Trace) -> tuple[float, ...]:
    """Mean over tokens of s = rms(H_k), for k = 0..K."""
    with torch.no_grad():
        means: list[float] = torch.stack([polar.scale(state).mean() for state in trace.states]).tolist()
    return tuple(means)


def fit_growth(scales: Sequence[float]) -> GrowthLaw:
    """Fit four laws to the scales s_1..s_N after loops 1..N (without s_0, which the loop did not produce).

    The relative error is minimized: least squares of the absolute error would fit an exponential to its last loops
    only. The law with the smallest error wins; 'constant', which has one coefficient less than the others, wins
    whenever its error is within `RESOLUTION`.

    Raises:
        InputError: there are fewer than four scales, or one is not finite and positive.
    """
    s = np.asarray(scales, dtype=np.float64)
    if len(s) < 4 or not (np.isfinite(s).all() and (s > 0).all()):
        raise InputError(f"scales {[float(f'{x:.4g}') for x in s]}; expected at least four, finite and positive")
    k = np.arange(1, len(s) + 1, dtype=np.float64)
    fits = {law: fit(k, s) for law, fit in _FITS.items()}
    errors = {law: error for law, (_, error) in fits.items()}
    best, second, *_ = sorted(errors, key=lambda law: (law != "constant" or errors[law] > RESOLUTION, errors[law]))
    return GrowthLaw(
        law=best,
        error=errors[best],
        coefficients=fits[best][0],
        runner_up=second,
        runner_up_error=errors[second],
        errors=MappingProxyType(errors),
        loops=len(s),
    )


_Fit = tuple[tuple[float, ...], float]


def _fit_basis(basis: Callable[[_Array], _Array], k: _Array, s: _Array) -> _Fit:
    """Fit s = basis(k) · θ by least squares of the relative error."""
    relative = basis(k) / s[:, None]
    theta, *_ = np.linalg.lstsq(relative, np.ones_like(s), rcond=None)
    return tuple(map(float, theta)), _rms(relative @ theta - 1)


def _fit_exponential(k: _Array, s: _Array) -> _Fit:
    """Fit s = a·exp(b·k): Gauss–Newton in (log a, b), from the straight line through log s, while the error falls."""
    b, log_a = np.polyfit(k, np.log(s), 1)
    best = (float(log_a), float(b))
    error = _rms(np.exp(log_a + b * k) / s - 1)
    for _ in range(20):
        ratio = np.exp(log_a + b * k) / s
        (d_log_a, d_b), *_ = np.linalg.lstsq(np.stack([ratio, k * ratio], -1), 1 - ratio, rcond=None)
        log_a, b = log_a + d_log_a, b + d_b
        next_error = _rms(np.exp(np.minimum(log_a + b * k, 700.0)) / s - 1)
        if not next_error < error:
            break
        best, error = (float(log_a), float(b)), next_error
    return (math.exp(best[0]), best[1]), error


def _rms(values: _Array) -> float:
    return float(np.sqrt(np.mean(values**2)))


_FITS: Mapping[Law, Callable[[_Array, _Array], _Fit]] = MappingProxyType(
    {
        "constant": lambda k, s: _fit_basis(lambda x: np.ones((len(x), 1)), k, s),
        "linear": lambda k, s: _fit_basis(lambda x: np.stack([np.ones_like(x), x], -1), k, s),
        "sqrt": lambda k, s: _fit_basis(lambda x: np.stack([np.ones_like(x), np.sqrt(x)], -1), k, s),
        "exponential": _fit_exponential,
    }
)
