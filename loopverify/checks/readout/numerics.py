"""Rounding: norms against float64, and the trajectory in bfloat16 against the model's own precision."""

from __future__ import annotations

import math

import torch

from loopverify.checks.check import check
from loopverify.checks.readout.norms import Norm, norms_of
from loopverify.checks.result import Finding, NotApplicableError, at_most
from loopverify.checks.subject import Subject, exactly, rounding, token_gaps

__all__ = ["half_precision_trajectory", "norm_numerics"]

SCALES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4)
"""rms of the states on which a norm is evaluated: from below an initialization of 0.02 to beyond the drift of trained
models."""
HALF_SAFETY = 4.0
"""Factor between the effect of one perturbation and the limit: a run in bfloat16 rounds several times per loop."""
TOO_COARSE_HALF = 0.5
"""Relative. If rounding may change a state by half, a comparison is meaningless; in bfloat16, a tenth is usual."""


@check()
def norm_numerics(subject: Subject) -> Finding:
    """A norm that is wrong at small or large states, or in bfloat16: squares that overflow, a misplaced epsilon."""
    norms = norms_of(subject)
    if not norms:
        raise NotApplicableError("no module that normalizes its last dimension was found")
    dtypes = sorted({subject.dtype, torch.bfloat16}, key=str)
    worst = max(
        (_excess(subject, norm, dtype, scale) for norm in norms for dtype in dtypes for scale in SCALES),
        key=lambda found: found[0] if found[0] == found[0] else math.inf,
    )
    ratio, where = worst
    return at_most(
        ratio,
        1,
        "times the rounding of the dtype",
        fault=f"{where}, the norm differs from a float64 computation",
        cause="squares or their mean in half precision, a clamp or an epsilon other than the module states",
        remedy="compute the mean square in float32 and add the stated epsilon inside the square root",
        note=f"{len(norms)} norms agree with float64 over rms {SCALES[0]:g} to {SCALES[-1]:g}",
    )


def _excess(subject: Subject, norm: Norm, dtype: torch.dtype, scale: float) -> tuple[float, str]:
    """The error of a norm divided by the one that its dtype allows, and where it was measured."""
    x = (scale * subject.normal(torch.empty(1, 16, norm.width, device=subject.device))).to(dtype)
    computed, exact = norm.apply(x), norm.exact(x)
    error = float((exactly(computed) - exact).abs().max() / exact.abs().max())
    # Four roundings in the dtype (input, quotient, gain, bias), and a sum over the channels in float32 or better.
    wide = torch.promote_types(dtype, torch.float32)
    allowed = 4 * torch.finfo(dtype).eps + rounding(wide, norm.width)
    return error / allowed, f"{norm.name} in {dtype} at rms {scale:g}"


@check(explained_by=("random_state", "sampled_depth"))
def half_precision_trajectory(subject: Subject) -> Finding:
    """A run in bfloat16 that differs from the model's own run by more than rounding: cancellation or overflow."""
    if subject.dtype in (torch.bfloat16, torch.float16):
        raise NotApplicableError(
            f"the model is in {subject.dtype}, so there is no run of higher precision to compare with"
        )
    _, low = subject.in_dtype(torch.bfloat16)
    # Usual kernels accumulate in float32, so one rounding of each state and weight remains.
    eps = torch.finfo(torch.bfloat16).eps
    limit = HALF_SAFETY * max(subject.response(eps, logits=False), eps)
    if limit > TOO_COARSE_HALF:
        raise NotApplicableError(f"rounding to bfloat16 alone may move a state by {limit:.2g}, relative")
    # The median over tokens: in a model with a router, rounding sends a few tokens to another expert.
    gaps = [token_gaps(rounded, exact) for rounded, exact in zip(low.states, subject.trace.states, strict=True)]
    typical = [float(gap.median()) if bool(gap.isfinite().all()) else math.inf for gap in gaps]
    worst = typical.index(max(typical))
    return at_most(
        typical[worst],
        limit,
        fault=f"in bfloat16, H_{worst} differs from the run in {subject.dtype} by more than rounding explains",
        cause="a difference of two large numbers, a long sum in half precision, or an overflow",
        remedy="keep the state (the residual stream) and its sums in float32",
        note="the run in bfloat16 differs only by rounding",
    )
