"""The theory in mpmath at 50 digits: an independent reference for the float64 of the tensors.

It shares no code with the rest of loopverify and imports neither torch nor numpy. It works on one token at a time, on
plain lists of numbers (floats are converted exactly), writes out every definition, and differentiates numerically at
raised precision (mpmath's `diff`), never by the closed forms that it is used to verify.

Results are mpf numbers of 50 digits; compare them inside `with precision():`, because mpmath rounds every operation to
the current precision. Needs the extra "oracle".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

try:
    from mpmath import mp, mpf
except ImportError as error:
    raise ImportError(
        "loopverify.theory.oracle needs mpmath; install it with: pip install 'loopverify[oracle]'"
    ) from error

__all__ = [
    "DIGITS",
    "carry_ratio",
    "clamped_l2",
    "cross_entropy",
    "derivative_along",
    "direction_remainder",
    "dynamic_tanh",
    "epsilon_shift",
    "fisher_visibility",
    "future_signal",
    "inner",
    "layer_norm",
    "logits",
    "norm_ledger",
    "norm_penalty",
    "precision",
    "radial_signal",
    "radial_turning",
    "rms",
    "rms_norm",
    "scale_remainder",
    "sigma",
    "softcap",
    "softmax",
    "split",
    "tapered",
    "vector",
]

DIGITS = 50

Number = Any
"""A float, an int or an mpf."""
Vector = Sequence[Any]
Map = Callable[[Vector], list[Any]]
Loss = Callable[[Vector], Any]

P = ParamSpec("P")
R = TypeVar("R")


def precision() -> AbstractContextManager[None]:
    """The context in which the oracle computes: 50 digits."""
    context: AbstractContextManager[None] = mp.workdps(DIGITS)
    return context


def _exact(function: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def at_full_precision(*args: P.args, **kwargs: P.kwargs) -> R:
        # Never lower a precision that the caller, or mpmath's `diff`, has raised.
        with mp.workdps(max(mp.dps, DIGITS)):
            return function(*args, **kwargs)

    return at_full_precision


@_exact
def vector(values: Vector) -> list[Number]:
    """The numbers as mpf, exactly."""
    return [mpf(value) for value in values]


# Polar form


@_exact
def inner(x: Vector, y: Vector) -> Number:
    """Σ x_i y_i / d."""
    return mp.fdot(vector(x), vector(y)) / len(x)


@_exact
def rms(x: Vector) -> Number:
    """√(Σ x_i² / d)."""
    return mp.sqrt(inner(x, x))


@_exact
def split(H: Vector) -> tuple[Number, list[Number]]:
    """s and u of H = s·u, for H other than zero."""
    s = rms(H)
    return s, [h / s for h in vector(H)]


@_exact
def radial_turning(u: Vector, b: Vector) -> tuple[Number, list[Number]]:
    """a and b_perp of b = a·u + b_perp, orthogonal whatever the length of u."""
    a = inner(u, b) / inner(u, u)
    return a, [y - a * x for x, y in zip(vector(u), vector(b), strict=True)]


# Readouts and losses


@_exact
def rms_norm(H: Vector, gain: Vector | None = None, eps: Number = 0) -> list[Number]:
    """γ ⊙ H / √(mean H² + ε)."""
    divisor = mp.sqrt(inner(H, H) + mpf(eps))
    return _scaled([h / divisor for h in vector(H)], gain)


@_exact
def layer_norm(H: Vector, gain: Vector | None = None, bias: Vector | None = None, eps: Number = 0) -> list[Number]:
    """γ ⊙ (H − mean H) / √(var H + ε) + β."""
    mean = mp.fsum(vector(H)) / len(H)
    normed = rms_norm([h - mean for h in vector(H)], gain, eps)
    return normed if bias is None else [n + mpf(b) for n, b in zip(normed, bias, strict=True)]


@_exact
def clamped_l2(H: Vector, eps: Number) -> list[Number]:
    """H / max(||H||_2, ε)."""
    divisor = max(mp.sqrt(mp.fsum(h * h for h in vector(H))), mpf(eps))
    return [h / divisor for h in vector(H)]


@_exact
def dynamic_tanh(H: Vector, alpha: Number, gain: Vector | None = None) -> list[Number]:
    """γ ⊙ tanh(αH)."""
    return _scaled([mp.tanh(mpf(alpha) * h) for h in vector(H)], gain)


@_exact
def tapered(H: Vector, gate: Number, gain: Vector | None, eps: Number, linear: Vector | None) -> list[Number]:
    """g·RMSNorm(H) + (1 − g)·c ⊙ H."""
    parts = zip(rms_norm(H, gain, eps), _scaled(vector(H), linear), strict=True)
    return [mpf(gate) * n + (1 - mpf(gate)) * h for n, h in parts]


@_exact
def logits(weight: Sequence[Vector], r: Vector) -> list[Number]:
    """W r."""
    return [mp.fdot(vector(row), vector(r)) for row in weight]


@_exact
def softcap(z: Vector, cap: Number) -> list[Number]:
    """c·tanh(z / c)."""
    return [mpf(cap) * mp.tanh(v / mpf(cap)) for v in vector(z)]


@_exact
def softmax(z: Vector) -> list[Number]:
    """exp(z_v) / Σ exp(z)."""
    top = max(vector(z))
    weights = [mp.exp(v - top) for v in vector(z)]
    total = mp.fsum(weights)
    return [w / total for w in weights]


@_exact
def cross_entropy(z: Vector, target: int) -> Number:
    """log Σ exp(z) − z_y, in nats."""
    top = max(vector(z))
    return mp.log(mp.fsum(mp.exp(v - top) for v in vector(z))) + top - mpf(z[target])


@_exact
def norm_penalty(H: Vector, weight: Number, loops: int, tokens: int) -> Number:
    """This token's share λ·rms(H)²/(K·tokens) of the norm penalty."""
    return mpf(weight) * inner(H, H) / (loops * tokens)


# Derivatives


@_exact
def radial_signal(loss: Loss, H: Vector) -> Number:
    """d loss(e^t H)/dt at t = 0, by numerical differentiation."""
    return mp.diff(lambda t: loss([mp.exp(t) * h for h in vector(H)]), 0)


@_exact
def derivative_along(loss: Loss, H: Vector, v: Vector) -> Number:
    """d loss(H + t·v)/dt at t = 0, by numerical differentiation."""
    return mp.diff(lambda t: loss([h + t * x for h, x in zip(vector(H), vector(v), strict=True)]), 0)


@_exact
def future_signal(step: Map, loss: Loss, H: Vector, horizon: int) -> Number:
    """∂L_{k+t}/∂log s_k at t = horizon: the radial signal of the loss after `horizon` steps."""

    def later(state: Vector) -> Number:
        for _ in range(horizon):
            state = step(state)
        return loss(state)

    return radial_signal(later, H)


@_exact
def sigma(values: Vector, z: Vector, target: int) -> Number:
    """E_p[values] − values_y with p = softmax(z)."""
    return mp.fdot(softmax(z), vector(values)) - mpf(values[target])


@_exact
def fisher_visibility(logits_of: Map, H: Vector, v: Vector) -> Number:
    """Var_p of the derivative of the logits along v."""
    p = softmax(logits_of(H))
    rate = [derivative_along(lambda x, i=i: logits_of(x)[i], H, v) for i in range(len(p))]  # type: ignore[misc]
    mean = mp.fdot(p, rate)
    return mp.fsum(q * (r - mean) ** 2 for q, r in zip(p, rate, strict=True))


# Activity


@_exact
def scale_remainder(s: Number, u: Vector, b: Vector) -> Number:
    """rms(su + b) − (s + a); u is normalized here, to rms 1 at 50 digits."""
    _, u = split(u)
    a, _ = radial_turning(u, b)
    return rms(_moved(s, u, b)) - (mpf(s) + a)


@_exact
def direction_remainder(s: Number, u: Vector, b: Vector) -> tuple[Number, Number]:
    """Radial part (signed) and rms of the turning part of F/rms(F) − u − b_perp/s, F = su + b."""
    _, u = split(u)
    _, b_perp = radial_turning(u, b)
    _, after = split(_moved(s, u, b))
    radial, turning = radial_turning(u, [x - y - z / mpf(s) for x, y, z in zip(after, u, b_perp, strict=True)])
    return radial, rms(turning)


@_exact
def norm_ledger(states: Sequence[Vector]) -> tuple[Number, list[Number], list[Number]]:
    """s_K − s_0, the a_k and the ρ_k = s_{k+1} − s_k − a_k of H_0 .. H_K, none of them zero."""
    radial, remainder = [], []
    for before, after in pairwise(states):
        s, u = split(before)
        a, _ = radial_turning(u, [y - x for x, y in zip(vector(before), vector(after), strict=True)])
        radial.append(a)
        remainder.append(rms(after) - s - a)
    return rms(states[-1]) - rms(states[0]), radial, remainder


@_exact
def carry_ratio(step: Map, H: Vector, alpha: Number) -> Number:
    """rms(F(αH)) / (α rms(H)), which tends to the carry as α grows."""
    return rms(step([mpf(alpha) * h for h in vector(H)])) / (mpf(alpha) * rms(H))


@_exact
def epsilon_shift(s: Number, eps: Number) -> Number:
    """1 − s/√(s² + ε)."""
    return 1 - mpf(s) / mp.sqrt(mpf(s) ** 2 + mpf(eps))


def _moved(s: Number, u: Vector, b: Vector) -> list[Number]:
    return [mpf(s) * x + mpf(y) for x, y in zip(u, b, strict=True)]


def _scaled(values: list[Number], factor: Vector | None) -> list[Number]:
    return values if factor is None else [v * mpf(f) for v, f in zip(values, factor, strict=True)]
