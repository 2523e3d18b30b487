"""What growth of the scale contributes to the loss: loops whose growth is undone (Sharma & Vu 2026, Table 4).

Two interventions on every loop after the first:

- 'scale' resets every token to its rms after loop 1, keeping its new direction: the paper's radial clamp;
- 'radial' drops the radial part a_rad·u of the update and keeps the turning part, H + b_perp: the scale then grows only
  to √(s² + rms(b_perp)²), by the turning part.

Both act on the state before it is read out and before the next loop. Shapes: B batch, T tokens, D channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from loopverify.errors import InputError, unknown
from loopverify.looped import Looped, Trace
from loopverify.measures.held_out import Batches, Sample, over_batches, pooled
from loopverify.objectives.terms import exit_cross_entropy
from loopverify.theory import polar

__all__ = ["ClampEffect", "ClampKind", "clamp_effect", "clamped"]

ClampKind = Literal["scale", "radial"]


@dataclass(frozen=True, kw_only=True)
class ClampEffect:
    """A run whose growth is undone, compared with the free run: both at the last loop."""

    kind: ClampKind
    after: int
    """The loop up to which both runs are equal; 1 in the paper."""
    free_loss: float
    """Cross-entropy of the last exit, nats per token."""
    clamped_loss: float
    free_norm: float
    """||H_K||_2, mean over tokens."""
    clamped_norm: float
    token_ratio: float
    """Mean over tokens of clamped over free norm; unlike `norm_ratio` it is not dominated by a few huge tokens."""
    sample: Sample

    @property
    def loss_change(self) -> float:
        """ΔCE = clamped − free, nats per token (Table 4)."""
        return self.clamped_loss - self.free_loss

    @property
    def norm_ratio(self) -> float:
        """Clamped over free mean norm (Table 4); 1 if the state does not grow, small if it grows much."""
        return self.clamped_norm / self.free_norm


def clamp_effect(
    model: Looped,
    batches: Batches,
    loops: int | None = None,
    *,
    kind: ClampKind = "scale",
    after: int = 1,
    seed: int = 0,
) -> ClampEffect:
    """Measure how much worse the last exit is if the loops past `after` do not grow the state.

    Table 4 is kind 'scale' over 20 batches of 8 sequences of 256 tokens.

    Args:
        batches: pairs (tokens, targets), each (B, T) int64.
        loops: K; the trained loops when omitted.
        kind: 'scale' or 'radial'; see the module.

    Raises:
        InputError: the kind is unknown, `after` is outside 0..K − 1, or the batches are invalid.
    """

    def measure(trace: Trace, targets: Tensor) -> list[float]:
        held = clamped(trace, kind, after=after)
        norms = [polar.at_least_float32(run.states[-1]).norm(dim=-1) for run in (trace, held)]
        losses = [exit_cross_entropy(run, targets, run.loops) for run in (trace, held)]
        # A zero token stays zero: its ratio 0/0 counts as 1.
        ratio = torch.where(norms[0] == norms[1], 1.0, norms[1] / norms[0])
        numbers = torch.stack([*losses, *(n.mean() for n in (*norms, ratio))])
        values: list[float] = numbers.tolist()  # one transfer from the device
        return values

    sample, rows = over_batches(model, batches, loops, measure, seed=seed)
    free_loss, clamped_loss, free_norm, clamped_norm, token_ratio = pooled(rows, sample.counts)
    return ClampEffect(
        kind=kind,
        after=after,
        free_loss=free_loss,
        clamped_loss=clamped_loss,
        free_norm=free_norm,
        clamped_norm=clamped_norm,
        token_ratio=token_ratio,
        sample=sample,
    )


def clamped(trace: Trace, kind: ClampKind = "scale", *, after: int = 1) -> Trace:
    """The run that `trace` would have been if its loops past `after` did not grow the state. Runs these loops again.

    Like any trace, the result has exits, norms and a ledger.

    Raises:
        InputError: the kind is unknown, or `after` is outside 0..K − 1.
    """
    if kind not in _KEEP:
        raise unknown("kind of clamp", kind, _KEEP)
    if not 0 <= after < trace.loops:
        raise InputError(
            f"a clamp after loop {after} of a run of {trace.loops} loops; expected 0..{trace.loops - 1}, "
            "so that a loop is left to clamp"
        )
    states = [state.detach() for state in trace.states[: after + 1]]
    with torch.no_grad():
        for loop in range(after + 1, trace.loops + 1):
            before = states[-1]
            following = trace.model.step(before, trace.context, loop)
            states.append(_KEEP[kind](before, following).to(before.dtype))
    return Trace(trace.model, trace.tokens, tuple(states), trace.context, grad=False)


def _keep_scale(before: Tensor, following: Tensor) -> Tensor:
    # All states since loop `after` have the scale of that loop, `before` included.
    return polar.scale(before)[..., None] * polar.direction(following)


def _keep_turning(before: Tensor, following: Tensor) -> Tensor:
    wide = polar.at_least_float32(before)
    _, b_perp = polar.radial_turning(polar.direction(before), polar.at_least_float32(following) - wide)
    return wide + b_perp


_KEEP: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"scale": _keep_scale, "radial": _keep_turning}
)
