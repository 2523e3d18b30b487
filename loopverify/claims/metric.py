"""Metric names, their units, and the two expressions on them: a difference, such as 'ce@1-ce@4', and a ratio, such as
'norm_p99@4/norm_median@4'."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from loopverify.errors import InputError

__all__ = ["label", "names", "number", "quantity", "unit", "value"]

_NAME = r"[a-z][a-z0-9_]*(?:@[a-z0-9.]+)?"
_EXPRESSION = re.compile(rf"({_NAME})(?:([-/])({_NAME}))?")
# What stands before the @ -> (unit, how it is written for what stands after it: a loop, a factor, 'late')
_KINDS = {
    "norm": ("L2", "‖H_{k}‖₂"),
    "norm_median": ("L2", "median ‖H_{k}‖₂"),
    "norm_p99": ("L2", "p99 ‖H_{k}‖₂"),
    "norm_max": ("L2", "max ‖H_{k}‖₂"),
    "norm_std": ("L2", "std ‖H_{k}‖₂"),
    "rms": ("rms", "rms(H_{k})"),
    "ce": ("nats", "CE({k})"),
    "ppl": ("", "PPL({k})"),
    "ce_matched": ("nats", "CE({k}) at an equal first exit"),
    "ce_run": ("nats", "CE of a run of {k} loops"),
    "r": ("", "r_{k}"),
    "r_over_floor": ("×", "r_{k} / rounding floor"),
    "g": ("nats", "g_{k}"),
    "clamp_delta_ce": ("nats", "ΔCE of the clamp"),
    "clamp_abs_delta_ce": ("nats", "|ΔCE| of the clamp"),
    "clamp_norm_ratio": ("×", "clamped / free ‖H_K‖₂"),
    "sweep_ce": ("nats", "CE at α = {k}"),
    "sweep_span": ("nats", "span of CE over α"),
    "bare_sweep_span": ("nats", "span of CE over α, without the norm"),
    "a_rad": ("rms", "a_rad ({k})"),
    "b_perp": ("rms", "rms(b_perp) ({k})"),
    "b": ("rms", "rms(b) ({k})"),
    "b_over_a": ("×", "rms(b) / |a_rad| ({k})"),
    "growth_gap": ("", "|s_k+1 − s_k − a_rad| / |s_k+1 − s_k| ({k})"),
    "step_slope_gap": ("", "|slope − 1| of angular step in 1/s ({k})"),
    "halting_loops": ("", "loops taken"),
    "halting_ppl_ratio": ("×", "dynamic / fixed PPL"),
    "choice_nll": ("nats", "NLL of a choice"),
    "choice_margin": ("nats", "gold − best distractor"),
    "timing_vs_rmsnorm": ("×", "tokens/s against RMSNorm at K = {k}"),
}


def names(expression: str) -> tuple[str, ...]:
    """The one or two metrics that an expression reads.

    Raises:
        InputError: it is neither a name nor a difference or ratio of two.
    """
    first, _, second = _parts(expression)
    return (first,) if second is None else (first, second)


def value(expression: str, metrics: Mapping[str, float]) -> float:
    """The value of an expression, whose names must all be in `metrics`; a ratio to 0 is not a number."""
    first, sign, second = _parts(expression)
    if second is None:
        return metrics[first]
    if sign == "-":
        return metrics[first] - metrics[second]
    return metrics[first] / metrics[second] if metrics[second] else math.nan


def unit(expression: str) -> str:
    """'L2' (norm over channels), 'rms', 'nats' (a token), '×' (a ratio), or '' for a pure number.

    Raises:
        InputError: an expression of two units.
    """
    _, sign, _ = _parts(expression)
    units = {_KINDS.get(name.split("@")[0], ("", ""))[0] for name in names(expression)}
    if len(units) > 1:
        done = "subtracts {} from {}" if sign == "-" else "takes a ratio of {} and {}"
        raise InputError(f"metric {expression!r} {done.format(*sorted(units))}; expected one unit")
    return "×" if sign == "/" else units.pop()


def label(expression: str) -> str:
    """The expression for people: '‖H_4‖₂', 'CE(1) − CE(4)'."""
    _, sign, _ = _parts(expression)
    written = []
    for name in names(expression):
        kind, _, loop = name.partition("@")
        written.append(_KINDS[kind][1].format(k=loop) if kind in _KINDS else name)
    return (" − " if sign == "-" else " / ").join(written)


def number(x: float, like: float | None = None) -> str:
    """A number at the three digits that a comparison over seeds can carry: 0.116, 37.2, 44, 39,207, 1.1e+09, 4.7e-09.

    With `like`, at the decimals of that number instead: an error as exact as what it is the error of.
    """
    size = abs(x if like is None else like)
    if not max(size, abs(x)) < 1e6:  # also inf and nan
        return f"{x:.3g}"
    if 0 < size < 1e-3:
        return f"{x:.3g}"
    decimals = 0 if size >= 100 or x == round(x) else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{x:,.{decimals}f}"


def quantity(x: float, of: str) -> str:
    """A number with its unit: '×891', '0.116 nats', '39,207 L2'."""
    return f"×{number(x)}" if of == "×" else f"{number(x)} {of}".rstrip()


def _parts(expression: str) -> tuple[str, str | None, str | None]:
    """First name, sign and second name."""
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        raise InputError(
            f"metric is {expression!r}; expected a name such as 'norm@4', a difference such as 'ce@1-ce@4', or a ratio "
            "such as 'norm@4/norm@1'"
        )
    first, sign, second = match.groups()
    return first, sign, second
