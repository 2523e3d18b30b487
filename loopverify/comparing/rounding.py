"""The difference that rounding alone may cause between two computations of the same states and logits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from loopverify.arguments import check_number
from loopverify.auditing.gradients import working_dtype
from loopverify.looped import Trace

__all__ = ["Rounding", "check_tolerance", "coarser", "rounding_of"]

_TF32_EPS = 2.0**-10
"""TF32 products keep 10 bits of each factor."""


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """The rounding of one model: the size of an ulp, and the error that a whole loop may make."""

    dtype: str
    """The coarsest dtype in the computation, among states, parameters, autocast and products."""
    eps: float
    """One ulp of 1.0 in that dtype."""
    tolerance: float
    """Relative error of a state (or of logits) that the rounding of one loop explains, or that a caller allows."""

    def allowing(self, tolerance: float | None) -> Rounding:
        """The same with the caller's tolerance, unless it is None."""
        return self if tolerance is None else replace(self, tolerance=tolerance)


def check_tolerance(tolerance: object) -> None:
    """Raise an InputError unless `tolerance` is None or a finite number >= 0."""
    if tolerance is not None:
        expected = "a relative error >= 0, such as 1e-5, or None for what rounding explains"
        check_number("tolerance", tolerance, expected, lambda x: 0 <= x < math.inf)


def rounding_of(trace: Trace) -> Rounding:
    """The rounding of the model and the dtypes that produced `trace`.

    With eps = 2u, u the unit roundoff, M weight matrices and sums of at most n products, the tolerance of a loop is

        √M · (eps + eps_sum · √n).

    - A sum of n products with independent rounding errors has a relative error of about u·√(n/2), with respect to its
      root mean square: the partial sums grow like √i, so that the relative variance is u²·(Σi)/n = u²·n/2. eps·√n is
      2.8 times that. eps_sum is the eps of the sums: torch sums half precisions in float32 on every device.
    - Stored values are rounded in addition: weight, input, output and non-linearity of each matrix, four roundings that
      add up to √4·u = eps in quadrature.
    - The errors of the M stages of a loop are independent and add up to √M times that of one. M counts all matrices of
      the model, embedding and head included, and so is never too small for a loop.

    Amplification inside a loop (sharp attention, cancellation) is not modeled; the margins above have to cover it.
    """
    dtype = working_dtype(trace)
    name, eps = str(dtype).removeprefix("torch."), torch.finfo(dtype).eps
    if dtype == torch.float32 and _tf32(trace.tokens.device):
        name, eps = "tf32", _TF32_EPS
    matrices = [parameter for parameter in trace.model.parameters() if parameter.ndim >= 2]
    terms = max([trace.states[0].shape[-1], *(matrix[0].numel() for matrix in matrices)])
    sums = min(eps, torch.finfo(torch.float32).eps)
    return Rounding(dtype=name, eps=eps, tolerance=math.sqrt(max(1, len(matrices))) * (eps + sums * math.sqrt(terms)))


def coarser(one: Rounding, other: Rounding) -> Rounding:
    """The rounding of a comparison: the larger eps and the larger tolerance of two models."""
    coarse = max(one, other, key=lambda rounding: rounding.eps)
    return Rounding(dtype=coarse.dtype, eps=coarse.eps, tolerance=max(one.tolerance, other.tolerance))


def _tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
