"""What an exit shows of the scale: its logits while the state before any readout norm is multiplied by α.

The logits are read at growths of two kinds. The response to a growth by α = `DRIFT` says whether the exit shows scale
at all. That alone would call a saturating readout (tanh) visible: it does answer to the first growth. So a state that
has grown by `DRIFT` already is doubled once more: a raw readout still answers, a saturated one does not any longer.

All α are powers of two, by which a float is scaled without rounding: any change of the logits is due to the readout.

Shapes: B batch, T tokens, D channels, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from loopverify.arguments import IGNORE, check_logits, check_vocabulary
from loopverify.looped import Trace
from loopverify.theory.polar import at_least_float32
from loopverify.theory.visibility import radial_signal, sigma

__all__ = ["ALPHAS", "DRIFT", "HALF", "Exit", "SweepPoint", "Visibility", "exit_sweep"]

Visibility = Literal["visible", "hidden", "saturating"]

ALPHAS = (1 / 16, 1 / 4, 4.0, 16.0)
"""The factors of the sweep in the report."""
DRIFT = 1024.0
"""The growth after which an exit is tested, of the size seen in the paper's blind runs (Table 2: tens to tens of
thousands)."""
HALF = 0.5
"""An exit hides scale if growth changes its logits by less than half of their size. For an RMSNorm the limit is reached
where its epsilon weighs about as much as the mean square (s² = 0.8 ε); the change of a raw readout is at least 1,
whatever its weights."""


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """What multiplying the state by `alpha` does to one exit."""

    alpha: float
    response: float
    """rms of the logits' change over the rms of the logits, both centered over the vocabulary because a softmax does
    not see their mean; 0 if the exit ignores scale, |alpha − 1| if it is raw."""
    max_logit_change: float
    """The largest |change| of a single logit."""
    loss_change: float
    """Change of the cross-entropy, nats per token."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """One exit of a run: its loss and what it shows of the scale."""

    loop: int
    loss: float
    """Cross-entropy, nats per token."""
    visibility: Visibility
    """visible: shows scale now and after growth by `DRIFT`; hidden: does not show growth; saturating: shows growth now,
    but no longer after growth by `DRIFT`."""
    visibility_factor: float | None
    """ν = Σ|<∇L, H>| / Σ|E_p[z] − z_y| over tokens, the measured side of Lemma 1: 1 for a raw readout, ε/(s² + ε) for a
    normalized one; None where the denominator is 0 or no gradient exists."""
    drift_response: float
    """`response` to alpha = `DRIFT`."""
    lasting_response: float
    """`response` to a doubling of the scale after growth by `DRIFT`; 1 for a raw readout."""
    sweep: tuple[SweepPoint, ...]
    """One point for each of `ALPHAS`."""


def exit_sweep(trace: Trace, targets: Tensor, loop: int) -> Exit:
    """Sweep the scale of H_loop, in front of exit `loop` of a run of trace.loops, against targets (B, T) int64.

    Costs one forward and backward pass through the readout and six forward passes.

    Raises:
        InputError: targets outside the vocabulary, or a readout that returns no logits (B, T, V).
    """
    z, loss, factor = _radial_identity(trace, targets, loop)
    with torch.no_grad():
        points = tuple(_point(trace, targets, loop, alpha, z, loss) for alpha in ALPHAS)
        grown = _scaled(trace, loop, DRIFT)
        drift = _response(grown - z, z)
        lasting = _response(_scaled(trace, loop, 2 * DRIFT) - grown, grown)
    return Exit(
        loop=loop,
        loss=loss,
        visibility=_visibility(drift, lasting),
        visibility_factor=factor,
        drift_response=drift,
        lasting_response=lasting,
        sweep=points,
    )


def _visibility(drift: float, lasting: float) -> Visibility:
    if drift < HALF:
        return "hidden"
    return "visible" if lasting >= HALF else "saturating"


def _scaled(trace: Trace, loop: int, alpha: float) -> Tensor:
    state = alpha * trace.states[loop].detach()
    return at_least_float32(trace.model.readout(state, trace.context, loop, trace.loops))


def _point(trace: Trace, targets: Tensor, loop: int, alpha: float, z: Tensor, loss: float) -> SweepPoint:
    scaled = _scaled(trace, loop, alpha)
    return SweepPoint(
        alpha=alpha,
        response=_response(scaled - z, z),
        max_logit_change=float((scaled - z).abs().max()),
        loss_change=_mean(_losses(scaled, targets), targets) - loss,
    )


def _response(change: Tensor, z: Tensor) -> float:
    moved, size = (float((x - x.mean(-1, keepdim=True)).square().mean().sqrt()) for x in (change, z))
    if moved == 0:
        return 0.0
    ratio = moved / size if size > 0 else float("inf")
    return ratio if ratio == ratio else float("inf")  # logits that overflow do show the growth


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each token, (B, T); 0 where the target is ignored."""
    check_vocabulary(targets, logits.shape[-1])
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="none")
    return losses.view(targets.shape)


def _mean(losses: Tensor, targets: Tensor) -> float:
    return float(losses.sum() / (targets != IGNORE).sum())


def _radial_identity(trace: Trace, targets: Tensor, loop: int) -> tuple[Tensor, float, float | None]:
    """The logits of an exit, its mean loss, and its visibility factor from one backward pass to the state."""
    state = trace.states[loop].detach().requires_grad_()
    with torch.enable_grad():
        shown = trace.model.readout(state, trace.context, loop, trace.loops)
        logits = at_least_float32(check_logits(shown, trace.tokens, loop))
        losses = _losses(logits, targets)
        total = losses.sum()
    z, loss = logits.detach(), _mean(losses.detach(), targets)
    if not total.requires_grad:
        return z, loss, None
    (gradient,) = torch.autograd.grad(total, state, materialize_grads=True)
    counted = targets != IGNORE
    raw = float(sigma(z, z, targets.where(counted, 0))[counted].abs().sum())
    measured = float(radial_signal(gradient, state.detach())[counted].abs().sum())
    return z, loss, measured / raw if raw > 0 else None
