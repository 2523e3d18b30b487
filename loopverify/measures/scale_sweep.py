"""CE, entropy and margin of an exit whose state is rescaled (Sharma & Vu 2026, Figures 5 and 6, Table 6).

`loopverify.auditing.exit_sweep` does the same at powers of two, to classify an exit; this is the paper's curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Looped, Trace
from loopverify.measures.held_out import Batches, Sample, over_batches, pooled
from loopverify.measures.per_token import entropies, margins, mean_counted, token_losses

__all__ = ["PAPER_ALPHAS", "ScalePoint", "ScaleSweep", "scale_sweep"]

PAPER_ALPHAS = tuple(10 ** (step / 4) for step in range(-4, 5))
"""Nine factors, evenly spaced on a logarithmic scale over the paper's range 0.1..10."""


@dataclass(frozen=True, kw_only=True)
class ScalePoint:
    """An exit whose state was multiplied by `alpha`. Means over tokens."""

    alpha: float
    loss: float
    """Cross-entropy, nats per token."""
    entropy: float
    """Entropy of the predicted distribution, nats."""
    margin: float
    """Largest minus second largest logit."""


@dataclass(frozen=True, kw_only=True)
class ScaleSweep:
    """The response of one exit to its state's scale."""

    loop: int
    """The exit, in a run of `sample.loops` loops."""
    points: tuple[ScalePoint, ...]
    """One point per factor, in the order of `alphas`."""
    sample: Sample

    @property
    def loss_span(self) -> float:
        """Largest minus smallest loss of the sweep, nats per token; 0 for an exit that ignores scale."""
        losses = [point.loss for point in self.points]
        return max(losses) - min(losses)


def scale_sweep(
    model: Looped,
    batches: Batches,
    loops: int | None = None,
    *,
    loop: int | None = None,
    alphas: Sequence[float] = PAPER_ALPHAS,
    seed: int = 0,
) -> ScaleSweep:
    """Multiply the state of one exit by each alpha and read the exit. Costs one forward pass of the readout per alpha.

    Args:
        batches: pairs (tokens, targets), each (B, T) int64.
        loops: K; the trained loops when omitted.
        loop: the exit, 1..K; the last when omitted.
        alphas: positive factors.

    Raises:
        InputError: there is no alpha, an alpha is not positive, the exit is outside the run, or the batches are
            invalid.
    """
    if not alphas or not all(0 < alpha < float("inf") for alpha in alphas):
        raise InputError(f"alphas are {tuple(alphas)}; expected at least one, each finite and > 0")

    def measure(trace: Trace, targets: Tensor) -> list[float]:
        exit_ = trace.loops if loop is None else loop
        if not 1 <= exit_ <= trace.loops:
            raise InputError(f"exit {exit_} of a run of {trace.loops} loops; expected 1..{trace.loops}")
        with torch.no_grad():
            read = [_read(trace, targets, exit_, alpha) for alpha in alphas]
            values: list[float] = torch.stack(read).flatten().tolist()  # one transfer from the device
            return values

    sample, rows = over_batches(model, batches, loops, measure, seed=seed)
    columns = iter(pooled(rows, sample.counts))
    points = tuple(
        ScalePoint(alpha=alpha, loss=loss, entropy=entropy, margin=margin)
        for alpha, loss, entropy, margin in zip(alphas, columns, columns, columns, strict=True)
    )
    return ScaleSweep(loop=loop or sample.loops, points=points, sample=sample)


def _read(trace: Trace, targets: Tensor, loop: int, alpha: float) -> Tensor:
    """Loss, entropy and margin, (3,)."""
    logits = trace.model.readout(alpha * trace.states[loop], trace.context, loop, trace.loops)
    values = (token_losses(logits, targets), entropies(logits), margins(logits))
    return torch.stack([mean_counted(value, targets) for value in values])
