"""The radial gradient of each exit's own loss at its own state: r_k and a signed g_k (Sharma & Vu 2026, Table 3).

The gradients are direct, with the recurrence cut, as in Lemma 1: they exclude what arrives through later loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from loopverify.auditing.gradients import RadialGradient, direct_gradients, radial_gradient, working_dtype
from loopverify.auditing.norms import token_norms
from loopverify.looped import Looped, Trace
from loopverify.measures.held_out import Batches, Sample, over_batches, pooled
from loopverify.objectives import Terms
from loopverify.objectives.terms import exit_cross_entropy

__all__ = ["RadialSummary", "radial_summary"]


@dataclass(frozen=True, kw_only=True)
class RadialSummary:
    """The part of each exit's gradient that lies along its state."""

    exits: tuple[RadialGradient, ...]
    """Exits 1..K: `fraction` is r_k, `signal` is g_k = dCE_k/d log s for a common s of all tokens (nats per token), and
    `floor` is the fraction that rounding leaves in the dtype that was used."""
    norm: float
    """||H_K||_2, mean over tokens."""
    sample: Sample

    @property
    def r_1(self) -> float | None:
        """Radial fraction of the first exit; None where it gets no gradient."""
        return self.exits[0].fraction

    @property
    def r_K(self) -> float | None:  # noqa: N802 - the table's name
        """Radial fraction of the last exit; None where it gets no gradient."""
        return self.exits[-1].fraction

    @property
    def g_K(self) -> float:  # noqa: N802 - the table's name
        """dCE_K/d log s, nats per token; positive where descent reduces the scale."""
        return self.exits[-1].signal

    @property
    def floor(self) -> float:
        """The fraction that rounding leaves on a blind readout."""
        return self.exits[-1].floor


def radial_summary(model: Looped, batches: Batches, loops: int | None = None, *, seed: int = 0) -> RadialSummary:
    """Measure r_k and g_k at every exit of a run. Costs one backward pass through the readout per loop, none through a
    step.

    r_k is the mean over tokens of |⟨g, H_k⟩| / (||g||_2 ||H_k||_2), g the gradient of the exit's own cross-entropy.

    Args:
        batches: pairs (tokens, targets), each (B, T) int64.
        loops: K; the trained loops when omitted.

    Raises:
        InputError: batches or loops are invalid.
    """
    sample, rows = over_batches(model, batches, loops, _measure, seed=seed)
    (norm,) = pooled([[norm] for norm, _ in rows], sample.counts)
    by_exit = zip(*(exits for _, exits in rows), strict=True)
    return RadialSummary(exits=tuple(_pool(batches, sample.counts) for batches in by_exit), norm=norm, sample=sample)


def _measure(trace: Trace, targets: Tensor) -> tuple[float, list[RadialGradient]]:
    dtype = working_dtype(trace)
    exits = []
    for loop in range(1, trace.loops + 1):
        # One exit at a time: the logits of all exits together would not fit into memory at the paper's sizes.
        direct = direct_gradients(trace, targets, partial(_own_loss, loop=loop))
        exits.append(radial_gradient(direct["exit"][loop - 1], trace.states[loop], dtype))
    return token_norms(trace.states[-1]).mean, exits


def _own_loss(trace: Trace, targets: Tensor, *, loop: int) -> Terms:
    return Terms({"exit": exit_cross_entropy(trace, targets, loop)})


def _pool(batches: tuple[RadialGradient, ...], counts: tuple[int, ...]) -> RadialGradient:
    (signal,) = pooled([[batch.signal] for batch in batches], counts)
    arrived = [
        (batch.fraction, count) for batch, count in zip(batches, counts, strict=True) if batch.fraction is not None
    ]
    fraction = None
    if arrived:
        (fraction,) = pooled([[fraction] for fraction, _ in arrived], [count for _, count in arrived])
    return RadialGradient(signal=signal, fraction=fraction, floor=batches[0].floor)
