"""Future losses: their indirect signal about the present scale, and how it fades.

Later states depend on s_k only through the size of their angular steps, b_perp/s_k. So on a stable trajectory of
bounded smooth updates |∂L_{k+t}/∂log s_k| <~ C·t/s_k (Sharma & Vu 2026, section 2, "Indirect future-loop signals").
C depends on the model and the token; it is not known in advance, but measured here.

Shapes: D channels, S scales, T horizons; "..." any leading dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.theory.polar import check_state, direction
from loopverify.theory.visibility import radial_signal

__all__ = ["Attenuation", "future_signals", "log_slope", "measure_attenuation"]


def future_signals(
    step: Callable[[Tensor], Tensor], loss: Callable[[Tensor], Tensor], H: Tensor, horizon: int
) -> Tensor:
    """∂L_{k+t}/∂log s_k of each token for t = 0..horizon, (..., D) -> (horizon + 1, ...), in units of the loss.

    L_{k+t} is the sum over tokens of loss(step applied t times to H): with attention, the signal of a token includes
    the effect of its scale on the losses of others. Entry 0 is the direct signal of Lemma 1; the rest is indirect.

    Raises:
        InputError: horizon < 0, or H is not a floating tensor (..., D).
    """
    if horizon < 0:
        raise InputError(f"horizon is {horizon}; expected a number of loops >= 0")
    with torch.enable_grad():
        H = check_state(H, "H").detach().clone().requires_grad_()
        state, signals = H, []
        for t in range(horizon + 1):
            state = step(state) if t else state
            (grad,) = torch.autograd.grad(loss(state).sum(), H, retain_graph=t < horizon)
            signals.append(radial_signal(grad, H.detach()))
    return torch.stack(signals)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attenuation:
    """Indirect signals over a range of scales and horizons, in units of the loss."""

    scales: tuple[float, ...]
    """The rms scales s_k to which the states were set, increasing."""
    signals: Tensor
    """|∂L_{k+t}/∂log s_k|, the largest over tokens, for t = 1..T, (S, T)."""
    direct: Tensor
    """The same for t = 0, (S,)."""

    @property
    def orders(self) -> Tensor:
        """Log-log slope of the signal in s at each horizon, (T,): −1 where the signal fades like 1/s."""
        return torch.stack([log_slope(self.scales, column) for column in self.signals.T])

    @property
    def constant(self) -> float:
        """C, the smallest constant with which C·t/s bounds every measured signal."""
        s = torch.tensor(self.scales, dtype=self.signals.dtype, device=self.signals.device)[:, None]
        t = torch.arange(1, self.signals.shape[1] + 1, dtype=s.dtype, device=s.device)
        return float((self.signals * s / t).max())

    def predict(self, horizon: int, scale: float) -> float:
        """C·t/s: the largest signal about a state of scale s, t loops later, if the estimate holds."""
        return self.constant * horizon / scale


def measure_attenuation(
    step: Callable[[Tensor], Tensor],
    loss: Callable[[Tensor], Tensor],
    H: Tensor,
    scales: Sequence[float],
    horizon: int,
) -> Attenuation:
    """Set all tokens of H to each of the scales, continue the loop, and measure the signals of later losses.

    Args:
        step: state (..., D) -> state (..., D).
        loss: state (..., D) -> loss of each token (...); its sum is differentiated.
        H: states (..., D), of which only the directions are used.
        scales: at least two rms scales, positive and increasing; large against the updates for the estimate to apply.
        horizon: T >= 1, the number of further loops.

    Raises:
        InputError: scales or horizon are not as described.
    """
    if len(scales) < 2 or scales[0] <= 0 or list(scales) != sorted(set(scales)):
        raise InputError(f"scales are {tuple(scales)}; expected at least two, positive and increasing")
    if horizon < 1:
        raise InputError(f"horizon is {horizon}; expected a number of loops >= 1")
    u = direction(H.detach())
    rows = [future_signals(step, loss, s * u, horizon).abs().reshape(horizon + 1, -1).amax(1) for s in scales]
    table = torch.stack(rows)
    return Attenuation(scales=tuple(scales), signals=table[:, 1:], direct=table[:, 0])


def log_slope(x: Sequence[float], y: Tensor) -> Tensor:
    """Least-squares slope of log y in log x, (n,) and (n,) -> (): the order p of y ~ xᵖ. NaN unless all y > 0."""
    log_x = torch.tensor(x, dtype=torch.float64, device=y.device).log().to(y.dtype)
    centered = log_x - log_x.mean()
    return torch.where((y > 0).all(), (centered * y.log()).sum() / centered.square().sum(), torch.nan)
