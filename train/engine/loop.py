"""The step loop: trains a model with its objective on its examples and reports events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import torch
from torch import Tensor

from train.data import Examples
from train.data.examples import Batch
from train.engine.checkpointing import Checkpointer
from train.engine.divergence import DivergedError
from train.engine.evaluate import at_first_exit
from train.engine.events import Report, evaluations
from train.engine.stepper import Stepper
from train.engine.trainee import trainee
from train.machine.distributed import ALONE, Ranks
from train.machine.hardware import autocast, pinned
from train.specification import RunSpec
from train.store import Say

__all__ = ["DivergedError", "train"]

STEP_EVENT_EVERY = 10


def train(
    spec: RunSpec,
    examples: Examples,
    report: Report,
    *,
    checkpointer: Checkpointer | None = None,
    ranks: Ranks = ALONE,
    say: Say = print,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Train one run from its seed or its newest checkpoint; returns the weights and the held-out metrics.

    Args:
        checkpointer: resumes the run, writes its checkpoints and stops it after a signal; None: no checkpoints.
        ranks: the processes that train this run together, each of which calls this function.
        say: shows messages to the user.

    Raises:
        DivergedError: the loss or gradient of a step is not finite; the message names the likely cause.
        OutOfMemoryError: a single window does not fit the device.
        PreemptedError: the checkpointer received a signal.
    """
    with pinned(spec.preset.threads):
        return _train(spec, examples, report, checkpointer, ranks, say)


def _train(
    spec: RunSpec,
    examples: Examples,
    report: Report,
    checkpointer: Checkpointer | None,
    ranks: Ranks,
    say: Say,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    p = spec.preset
    device = torch.device(spec.device)
    torch.manual_seed(spec.seed)
    module = spec.model(examples.vocab_size).to(device)
    model = trainee(spec, module, ranks)
    steps = p.total_steps(examples.count)
    ranks.require_equal({"loops": p.loops, "steps": steps})

    def held_out_metrics(count: int, by_depth: Mapping[int, Batch]) -> dict[str, float]:
        depths = {d: (tokens.to(device), targets.to(device)) for d, (tokens, targets) in by_depth.items()}
        with autocast(device, spec.execution.precision):
            return model.evaluate(_on(device, examples.held_out(count)), depths)

    stepper = Stepper(spec, model, device, steps, ranks=ranks, say=say)
    if ranks.count > 1:
        stepper.state.seed_rank(0)
    done = 0 if checkpointer is None else checkpointer.resume(stepper)
    seen = [] if checkpointer is None else evaluations(checkpointer.log())
    shares = islice(examples.training(spec.seed, done, ranks.share), steps - done)
    for step, (tokens, targets) in enumerate(_on(device, shares), start=done + 1):
        module.set_progress((step - 1) / steps)
        stepper.step(step, tokens, targets)
        if step % STEP_EVENT_EVERY == 0 or step == steps:
            report({"event": "step", "step": step, "steps": steps, **stepper.facts()})
        if step % p.history_every == 0 or step == steps:
            seen.append({"event": "eval", "step": step, **held_out_metrics(p.history_windows, {})})
            report(seen[-1])
        if checkpointer is not None:
            checkpointer.after(step, stepper)
    metrics = held_out_metrics(p.eval_windows, examples.by_depth())
    report({"event": "end", "step": steps, **metrics})
    return model.weights(), metrics | at_first_exit(seen, p.first_exit, p.loops)


def _on(device: torch.device, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches on the device; on CUDA each is copied from pinned memory while the one before it is processed."""
    if device.type != "cuda":
        yield from batches
        return
    moved = ((tokens.pin_memory(), targets.pin_memory()) for tokens, targets in batches)
    ahead = ((tokens.to(device, non_blocking=True), targets.to(device, non_blocking=True)) for tokens, targets in moved)
    following = next(ahead, None)
    while (current := following) is not None:
        following = next(ahead, None)
        yield current
