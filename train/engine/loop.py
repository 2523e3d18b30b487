"""The step loop: a model, its objective and a corpus in; a trained model and a stream of events out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from train.data import Corpus, Windows
from train.engine.divergence import DivergedError
from train.engine.events import Report
from train.engine.keeper import Keeper
from train.engine.stepper import Stepper
from train.engine.trainee import trainee
from train.machine.distributed import ALONE, Ranks
from train.machine.hardware import autocast, flushed_denormals
from train.spec import RunSpec

__all__ = ["DivergedError", "train"]

Batch = tuple[Tensor, Tensor]

STEP_EVENT_EVERY = 10


@flushed_denormals()
def train(
    spec: RunSpec,
    corpus: Corpus,
    report: Report,
    *,
    keeper: Keeper | None = None,
    ranks: Ranks = ALONE,
    say: Callable[[str], None] = print,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Train one run from its seed, or from where its keeper finds it; returns the weights and the held-out metrics.

    Args:
        keeper: resumes the run, writes its checkpoints and stops it when asked to; nobody when omitted.
        ranks: the processes that train this run together, each of which calls this.
        say: told what a user should know, in words.

    Raises:
        DivergedError: at the first step whose loss is not finite, with the likely cause.
        OutOfMemoryError: a single window does not fit the device.
        PreemptedError: the keeper was asked to stop.
    """
    p = spec.preset
    device = torch.device(spec.device)
    torch.manual_seed(spec.seed)
    module = spec.model(corpus.vocab_size).to(device)
    model = trainee(spec, module, ranks)
    windows = Windows(corpus.train, p.seq_len, p.stride, name="training text")
    held_out = Windows(corpus.held_out, p.seq_len, p.seq_len, name="held-out text")
    steps = p.total_steps(len(windows))
    ranks.require_equal({"loops": p.loops, "steps": steps})

    def held_out_metrics(count: int) -> dict[str, float]:
        with autocast(device, spec.execution.precision):
            return model.evaluate(_on(device, held_out.evenly_spaced(count, p.batch)))

    stepper = Stepper(spec, model, device, steps, ranks=ranks, say=say)
    if ranks.count > 1:
        stepper.state.draw_anew(0)
    done = 0 if keeper is None else keeper.resume(stepper)
    shares = (windows.batch(ranks.share(windows.order(step, p.batch, spec.seed))) for step in range(done, steps))
    for step, (tokens, targets) in enumerate(_on(device, shares), start=done + 1):
        module.set_progress((step - 1) / steps)
        stepper.step(step, tokens, targets)
        if step % STEP_EVENT_EVERY == 0 or step == steps:
            report({"event": "step", "step": step, "steps": steps, **stepper.facts()})
        if step % p.history_every == 0 or step == steps:
            report({"event": "eval", "step": step, **held_out_metrics(p.history_windows)})
        if keeper is not None:
            keeper.after(step, stepper)
    metrics = held_out_metrics(p.eval_windows)
    report({"event": "end", "step": steps, **metrics})
    return model.weights(), metrics


def _on(device: torch.device, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches on the device; on CUDA each is copied, from pinned memory, while the one before it is worked on."""
    if device.type != "cuda":
        yield from batches
        return
    moved = ((tokens.pin_memory(), targets.pin_memory()) for tokens, targets in batches)
    ahead = ((tokens.to(device, non_blocking=True), targets.to(device, non_blocking=True)) for tokens, targets in moved)
    following = next(ahead, None)
    while (current := following) is not None:
        following = next(ahead, None)
        yield current
