"""Stepper: the optimizer steps of one run, micro-batch by micro-batch, and facts about the last step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from loopverify.errors import LoopverifyError
from train.engine.divergence import DivergenceWatch
from train.engine.throughput import Throughput
from train.engine.trainee import Trainee
from train.machine.distributed import Ranks
from train.machine.hardware import autocast
from train.resume.checkpoint import Checkpoint
from train.resume.state import TrainState
from train.specification import RunSpec
from train.store import Say

__all__ = ["OutOfMemoryError", "Stepper"]

# Steps between checks for divergence. Reading a loss waits for an accelerator; on a CPU it costs nothing.
_CHECK_EVERY = {"cpu": 1}
_CHECK_EVERY_ON_GPU = 20


class OutOfMemoryError(LoopverifyError):
    """A step needs more memory than the accelerator has."""


class Stepper:
    """Takes the steps of one run on this rank's share of every batch."""

    def __init__(
        self,
        spec: RunSpec,
        trainee: Trainee,
        device: torch.device,
        steps: int,
        *,
        ranks: Ranks,
        say: Say,
    ) -> None:
        p = spec.preset
        self.ranks, self.micro_batch = ranks, spec.execution.micro_batch or ranks.largest_share(p.batch)
        self._steps = steps
        self._spec, self._trainee, self._device, self._say = spec, trainee, device, say
        groups = [{"params": group} for group in trainee.parameter_groups()]
        self.optimizer = torch.optim.AdamW(groups, lr=p.lr, weight_decay=p.weight_decay, fused=True)
        self.state = TrainState(trainee.module, self.optimizer, ranks, spec.seed)
        self._watch = DivergenceWatch(spec, trainee)
        self._parts: dict[str, Tensor] = {}
        self._gradient_norm: Tensor | None = None
        self._throughput = Throughput(spec, trainee.module.config.vocab_size, ranks)

    def step(self, step: int, tokens: Tensor, targets: Tensor) -> None:
        """One update from this rank's share of the batch of `step` (1, 2, ...), each (B, T) on the device."""
        p = self._spec.preset
        for group in self.optimizer.param_groups:
            group["lr"] = self._spec.learning_rate(step, self._steps)
        loss, self._parts = self._backward(tokens, targets)
        self._trainee.finish()
        self._gradient_norm = self._trainee.clip_(p.grad_clip)
        self._watch.note(step, loss, self._gradient_norm, tokens, self.optimizer.param_groups[0]["lr"])
        # Before the update: a non-finite gradient would make all weights non-finite and hide the cause.
        if step % _CHECK_EVERY.get(self._device.type, _CHECK_EVERY_ON_GPU) == 0:
            self.check_losses()
        self.optimizer.step()
        self._throughput.add(p.batch * p.seq_len)

    def check_losses(self) -> None:
        """Check that the losses and gradients since the last check are finite.

        Raises:
            DivergedError: one is not.
        """
        self._watch.check(self.ranks)

    def facts(self) -> dict[str, Any]:
        """Loss terms (nats), gradient norm before clipping (L2), learning rate and throughput."""
        assert self._gradient_norm is not None
        return {
            **{f"loss/{name}": float(self.ranks.average_(part.clone())) for name, part in self._parts.items()},
            "gradient_norm": float(self._gradient_norm),
            "lr": self.optimizer.param_groups[0]["lr"],
            **self._throughput.facts(),
        }

    def progress(self) -> dict[str, Any]:
        """The state of the stepper that a checkpoint stores next to its tensors, as JSON."""
        return {"micro_batch": self.micro_batch, "gradient_before": self._watch.gradient_before}

    def load(self, checkpoint: Checkpoint) -> None:
        """Take up the state of a checkpoint."""
        self.state.load(checkpoint.path, step=checkpoint.step, ranks=checkpoint.ranks)
        self._watch.gradient_before = checkpoint.progress["gradient_before"]
        if self._spec.execution.micro_batch is None and checkpoint.ranks == self.ranks.count:
            # The size that fit was found by trial. It determines the rounding of every step, so that a resumed run has
            # to use it from the start instead of searching again.
            self.micro_batch = checkpoint.progress["micro_batch"]

    def _backward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and parts of the whole share; gradients stay in the parameters. Out of memory, micro-batches shrink."""
        while True:
            random = _RandomNumbers(self._device)
            try:
                return self._accumulate(tokens, targets)
            except torch.OutOfMemoryError as error:
                reason = str(error).splitlines()[0]
            # After the handler, because the exception keeps the frames of the failed attempt, and with them its
            # tensors, alive.
            self._shrink(reason)
            random.restore()

    def _accumulate(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, Tensor] = {}
        for rows, labels, weight, last in self._micro_batches(tokens, targets):
            with nullcontext() if last else self._trainee.unsynchronized():
                with autocast(self._device, self._spec.execution.precision):
                    loss, parts = self._trainee.loss(rows, labels)
                    loss = loss * weight
                loss.backward()  # type: ignore[no-untyped-call]
            for name, part in {"": loss.detach(), **{name: part * weight for name, part in parts.items()}}.items():
                totals[name] = totals[name] + part if name in totals else part
        return totals.pop(""), totals

    def _micro_batches(self, tokens: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor, float, bool]]:
        """(tokens, targets, weight, whether it is the last micro-batch).

        The loss of a micro-batch is a mean over its n windows, which are equally long, and the ranks' gradients are
        averaged over R ranks (by DDP, FSDP and `Ranks.average_`). The loss of the whole batch of B windows is the sum
        of n / B times the micro-batch losses of all ranks. Since the average divides by R, each rank weights its
        micro-batches with n R / B; with weights n / (windows of the rank) instead, windows of ranks with smaller
        shares would count more.

        All ranks must take the same number of micro-batches, because each forward and backward pass may contain
        collective operations, in which a missing rank would stall the others. A rank whose share is used up therefore
        computes its first window again with weight 0.
        """
        batch, count = self._spec.preset.batch, self.ranks.count
        number = math.ceil(self.ranks.largest_share(batch) / self.micro_batch)
        for place in range(number):
            rows = slice(place * self.micro_batch, (place + 1) * self.micro_batch)
            weight = len(tokens[rows]) * count / batch
            if weight == 0:
                rows = slice(0, 1)
            yield tokens[rows], targets[rows], weight, place == number - 1

    def _shrink(self, reason: str) -> None:
        """Divide the share into one more micro-batch, of equal size as far as possible.

        Raises:
            OutOfMemoryError: a single window does not fit, or there are other ranks, which would have to shrink as
            well.
        """
        smaller = _next_smaller(self.micro_batch, self.ranks.largest_share(self._spec.preset.batch))
        if self.ranks.count > 1:
            raise OutOfMemoryError(
                f"out of memory with micro-batches of {self.micro_batch} windows on rank {self.ranks.rank} ({reason}); "
                f"start again with --micro-batch {max(1, smaller)}"
            )
        if self.micro_batch == 1:
            raise OutOfMemoryError(
                f"out of memory with a single window of {self._spec.preset.seq_len} tokens ({reason}); "
                "use a smaller preset, a larger device, or several devices with --parallel fsdp"
            )
        self._say(f"out of memory with micro-batches of {self.micro_batch} windows; trying {smaller}")
        self.micro_batch = smaller
        self.optimizer.zero_grad(set_to_none=True)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _next_smaller(micro_batch: int, share: int) -> int:
    """The largest size below `micro_batch` that divides a share into equal micro-batches (up to one window); 0:
    none."""
    return math.ceil(share / math.ceil(share / (micro_batch - 1))) if micro_batch > 1 else 0


class _RandomNumbers:
    """The random state before a step; restored before a retry, so that dropout draws as in the first attempt."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = torch.cuda.get_rng_state() if device.type == "cuda" else None
        self._cpu = torch.get_rng_state()

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
