"""Lemma 1: what a loss can see of a state, exactly, and which signals a finite precision can resolve.

For L = CE(z(H), y) with p = softmax(z), the radial signal is ⟨∇_H L, H⟩ = ∂L/∂log s = E_p[ż] − ż_y, where ż is the
radial rate of the logits (`Head.radial_rate`). A raw readout has ż = z; one that is homogeneous of degree 0 up to its
epsilon has ż = ν·z, hence a signal of ν·σ with σ = E_p[z] − z_y (Sharma & Vu 2026, Lemma 1: ε = 0, ν = 0, signal 0).

Gradients meet states in plain inner products Σ_i g_i H_i (no 1/d): they are derivatives, not rms quantities.

Shapes: D channels, V vocabulary, always last; "..." any leading dimensions (one loss a token, gradients of their sum).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.theory.polar import at_least_float32, check_state
from loopverify.theory.readouts import Head

__all__ = [
    "fisher_visibility",
    "floor",
    "fraction_along",
    "mean_fraction",
    "penalty_radial_signal",
    "predicted_radial_signal",
    "radial_fraction",
    "radial_signal",
    "sigma",
]


def radial_signal(grad: Tensor, H: Tensor) -> Tensor:
    """⟨∇_H L, H⟩ = ∂L/∂log s of each token, (..., D) and (..., D) -> (...), in units of the loss.

    Sums in float64 (in float32 where the device has no float64).

    Raises:
        InputError: the two differ in shape or are not floating.
    """
    grad, H = _wide_pair(grad, H)
    return (grad * H).sum(-1)


def sigma(values: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    """E_p[values] − values_y with p = softmax(logits), (..., V), (..., V), (...) int64 -> (...).

    It is the derivative of CE(logits, targets) when the logits change at the rate `values`. If `values` are the logits
    themselves, it is the radial signal of a raw readout, in units of the loss.

    Raises:
        InputError: the shapes do not match.
    """
    if values.shape != logits.shape or targets.shape != logits.shape[:-1]:
        raise InputError(
            f"values {tuple(values.shape)}, logits {tuple(logits.shape)}, targets {tuple(targets.shape)}; "
            "expected (..., V), (..., V) and (...)"
        )
    return (torch.softmax(logits, -1) * values).sum(-1) - values.gather(-1, targets[..., None])[..., 0]


def predicted_radial_signal(head: Head, H: Tensor, targets: Tensor) -> Tensor:
    """The radial signal that theory predicts for CE(head(H), targets): E_p[ż] − ż_y, (..., D), (...) -> (...).

    For a raw readout this is σ, for RMSNorm ν·σ, for LayerNorm ν·σ of the logits without the part of its bias, for a
    clamped L2 norm 0 or σ; a softcap damps each logit's rate by 1/cosh².

    Raises:
        InputError: the shapes do not match.
    """
    return sigma(head.radial_rate(H), head(H), targets)


def fraction_along(grad: Tensor, direction: Tensor) -> Tensor:
    """|⟨g, v⟩| / (||g|| ||v||) in [0, 1], (..., D) and (..., D) -> (...): how much of a gradient lies along v.

    NaN where g or v is zero: a loss that sends no gradient shows nothing about what it can see, and must not be
    mistaken for a blind one. Average with `torch.nanmean`.

    Raises:
        InputError: the two differ in shape or are not floating.
    """
    grad, direction = _wide_pair(grad, direction)
    # Divide by the largest channel first: the squares of a float32 gradient of 1e-25 would underflow.
    grad, direction = (x / x.abs().amax(-1, keepdim=True) for x in (grad, direction))
    norms = torch.linalg.vector_norm(grad, dim=-1) * torch.linalg.vector_norm(direction, dim=-1)
    fraction: Tensor = (grad * direction).sum(-1).abs() / norms
    return fraction.clamp_max(1.0)


def radial_fraction(grad: Tensor, H: Tensor) -> Tensor:
    """|⟨g, H⟩| / (||g|| ||H||) of each token, (..., D) and (..., D) -> (...); see `fraction_along`.

    It is about 1/√d for a gradient to which the radial direction is like any other. Compare it with the `floor` of the
    dtype in which the gradient was computed.
    """
    return fraction_along(grad, H)


def mean_fraction(grad: Tensor) -> Tensor:
    """How much of a gradient lies along the all-ones direction, (..., D) -> (...); exactly 0 behind a LayerNorm."""
    return fraction_along(grad, torch.ones_like(grad))


def floor(dtype: torch.dtype, d: int) -> float:
    """The radial fraction that rounding alone leaves on a perfectly blind readout: 2·eps/√d, with eps of `dtype`.

    Lemma 1 predicts a fraction that falls like ε/s². A computed one does not fall below a floor set by rounding, and
    without knowing the floor a fraction of 1e-8 could be taken for a weak signal.

    In a gradient rounded to nearest, each channel has a relative error of up to u = eps/2. If these are independent,
    their contribution to ⟨g, H⟩ is a random walk over d channels, of size c·u/√d relative to ||g|| ||H||. c is 0.4 if
    only the result is rounded (fused half-precision norms); each rounded intermediate of the backward pass adds to it,
    up to c = 4 in root mean square over tokens and 36 for the worst of 256 tokens (measured in four dtypes, for
    d = 8..2048, s = 1 and 1e3). The floor is that of c = 4. So a mean over tokens that is at most the floor cannot be
    distinguished from a blind readout in this dtype; a single token may exceed it tenfold by rounding alone.

    Args:
        dtype: the dtype in which the gradient was computed.
        d: the number of channels.

    Raises:
        InputError: dtype is not floating, or d < 1.
    """
    if not dtype.is_floating_point or d < 1:
        raise InputError(f"floor of dtype {dtype} and d = {d}; expected a floating dtype and d >= 1")
    return 2.0 * float(torch.finfo(dtype).eps) / math.sqrt(d)


def fisher_visibility(logits: Callable[[Tensor], Tensor], H: Tensor, v: Tensor) -> Tensor:
    """v'Gv of each token, (..., D) and (..., D) -> (...): the Fisher information of the logits along v.

    G = J'(diag p − pp')J with J the Jacobian of the logits; v'Gv = Var_p[Jv] is twice the KL divergence (nats) of a
    small step along v, per squared step. If it is zero, the cross-entropy does not change along v for any target.

    Args:
        logits: (..., D) -> (..., V), token by token and differentiable.

    Raises:
        InputError: H and v differ in shape or are not floating.
    """
    if v.shape != H.shape:
        raise InputError(f"v has shape {tuple(v.shape)}, H {tuple(H.shape)}; expected the same")
    check_state(H, "H")
    z, rate = _jvp(logits, H.detach(), v.detach().to(H.dtype))
    p = torch.softmax(at_least_float32(z), -1)
    centered = rate - (p * rate).sum(-1, keepdim=True)
    variance: Tensor = (p * centered.square()).sum(-1)
    return variance


def penalty_radial_signal(s: Tensor, *, weight: float, loops: int, tokens: int) -> Tensor:
    """Radial derivative 2λs²/(K·tokens) of the norm penalty λ·mean_k mean_tokens rms(H_k)², (...) -> (...).

    Args:
        s: rms(H_k) of single tokens, any shape.
        weight: λ.
        loops: K, the states that the penalty averages over.
        tokens: the tokens of a state that the penalty averages over.

    Raises:
        InputError: loops or tokens are below 1.
    """
    if loops < 1 or tokens < 1:
        raise InputError(f"a penalty over loops = {loops} and tokens = {tokens}; expected both >= 1")
    return 2 * weight * s.square() / (loops * tokens)


def _jvp(function: Callable[[Tensor], Tensor], at: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """function(at) and its derivative along a direction, by two backward passes: forward-mode derivatives do not exist
    for every operation that a readout may contain."""
    with torch.enable_grad():
        at = at.requires_grad_()
        value = function(at)
        probe = torch.zeros_like(value, requires_grad=True)
        (pulled,) = torch.autograd.grad(value, at, probe, create_graph=True)
        (pushed,) = torch.autograd.grad(pulled, probe, along)
    return value.detach(), pushed


def _wide_pair(grad: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float64, so that the measurement adds no rounding; in float32 on devices without float64."""
    check_state(grad, "grad")
    check_state(other, "the state")
    if grad.shape != other.shape:
        raise InputError(
            f"a gradient {tuple(grad.shape)} along {tuple(other.shape)}; expected one gradient for each token's state"
        )
    wide = torch.float32 if grad.device.type == "mps" else torch.float64
    return grad.to(wide), other.to(wide)
