"""Divergence: a non-finite loss or gradient ends a run with a message: step, likely cause and advice."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from loopverify.errors import LoopverifyError
from train.engine.trainee import Trainee
from train.machine.distributed import Ranks
from train.specification import RunSpec

__all__ = ["DivergedError", "DivergenceWatch"]


class DivergedError(LoopverifyError):
    """The loss or its gradient is not finite."""


class DivergenceWatch:
    """Records the losses of all steps on the device and checks them in groups, since a check waits for the device."""

    def __init__(self, spec: RunSpec, trainee: Trainee) -> None:
        self.gradient_before: float | None = None
        """The last gradient norm that was checked and found finite."""
        self._spec, self._trainee = spec, trainee
        self._unseen: list[tuple[int, Tensor]] = []
        """(step, its loss and gradient norm (2,)), not yet checked."""
        self._tokens: Tensor | None = None
        self._lr = 0.0

    def note(self, step: int, loss: Tensor, gradient_norm: Tensor, tokens: Tensor, lr: float) -> None:
        """Record a step without waiting for the device."""
        self._unseen.append((step, torch.stack((loss, gradient_norm))))
        self._tokens, self._lr = tokens, lr

    def check(self, ranks: Ranks) -> None:
        """Check the steps since the last check, on all ranks together.

        Raises:
            DivergedError: at the first step whose loss or gradient is not finite on some rank.
        """
        seen, self._unseen = self._unseen, []
        for step, numbers in seen:
            loss, gradient = ranks.average_(numbers).tolist()
            if not (math.isfinite(loss) and math.isfinite(gradient)):
                raise DivergedError(self._message(step, loss, gradient))
            self.gradient_before = gradient

    def _message(self, step: int, loss: float, gradient: float) -> str:
        before = "none" if self.gradient_before is None else f"{self.gradient_before:.3g}"
        return (
            f"{self._spec.label}: at step {step} the loss is {loss:.4g} and its gradient norm {gradient:.4g}; "
            f"expected finite numbers. {self._likely_cause()} (lr {self._lr:g}, "
            f"last finite gradient norm before clipping: {before}). {self._advice()}"
        )

    def _advice(self) -> str:
        steadier = "Lower the learning rate or lengthen the warm-up"
        if self._spec.penalized:
            return f"{steadier}, or lower the weight of the norm penalty ({self._spec.penalty:g})"
        if self._spec.readout == "raw":
            return steadier
        return f"{steadier}; a norm penalty or a raw readout makes the scale of the state visible to the loss"

    def _likely_cause(self) -> str:
        for name, tensor in self._trainee.weights().items():
            if not tensor.isfinite().all():
                return f"Likely cause: an earlier update left parameter {name!r} non-finite"
        assert self._tokens is not None
        rms = self._trainee.rms_by_loop(self._tokens)
        listed = ", ".join(f"H_{k} {value:.3g}" for k, value in enumerate(rms))
        for k, value in enumerate(rms):
            if not math.isfinite(value):
                return f"Likely cause: the state overflows at loop {k} (rms by loop: {listed})"
        return f"Likely cause: the exits or the gradient overflow, not the states (rms by loop: {listed})"
