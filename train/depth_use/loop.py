"""Training on a task: fresh instances at every step, all exits supervised; a trained model and its metrics out."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from loopverify.claims import FIRST_EXIT
from loopverify.looped import Looped, unroll
from loopverify.models import LoopedTransformer
from loopverify.objectives import named
from loopverify.tasks import Sequences
from train.depth_use.protocol import ArmRun, Protocol
from train.engine.evaluate import evaluate
from train.engine.events import Event, Report
from train.machine.hardware import flushed_denormals

__all__ = ["accuracies", "at_first_exit", "train"]

# Seeds of the generators that draw instances; a run's own seed draws its weights.
_TRAINING, _HELD_OUT = 1_000_000, 999_999


def train(run: ArmRun, report: Report) -> tuple[LoopedTransformer, dict[str, float]]:
    """Train one arm from its seed; returns the model and its metrics.

    These are those of `train.engine.evaluate`, 'accuracy_d@k' by steps d = 1, 2, ... and exit k (as 'accuracy_1@4'),
    and 'ce_matched@k' and 'step_matched' as in `at_first_exit`.
    """
    p = run.protocol
    torch.manual_seed(run.seed)
    module = run.model()
    model = module.looped(run.condition)
    held_out = p.task.draw(p.eval_instances, torch.Generator().manual_seed(_HELD_OUT))
    history: list[Event] = []
    with flushed_denormals():
        for step in _steps(run, model):
            if step % p.history_every == 0 or step == p.steps:
                seen = evaluate(model, _batches(held_out, p.history_instances, p))
                history.append({"event": "eval", "step": step, **seen})
                report(history[-1])
        metrics = evaluate(model, _batches(held_out, p.eval_instances, p))
        return module, metrics | accuracies(model, held_out) | at_first_exit(history, p.loops)


def _steps(run: ArmRun, model: Looped) -> Iterator[int]:
    """The number of every optimizer step, once it is done."""
    p, lr, objective = run.protocol, run.arm.lr, named(run.arm.loss)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=p.weight_decay, fused=True)
    generator = torch.Generator().manual_seed(_TRAINING + run.seed)
    for step in range(1, p.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, step / max(1, p.warmup_steps))
        drawn = p.task.draw(p.batch, generator)
        loss = objective(unroll(model, drawn.tokens, p.loops, grad=True), drawn.targets).total
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, p.grad_clip)
        optimizer.step()
        yield step


def accuracies(model: Looped, sequences: Sequences) -> dict[str, float]:
    """'accuracy_d@k': the share of answers of d steps that exit k gets right."""
    trace = unroll(model, sequences.tokens)
    answers = sequences.targets[:, -1]
    right = [trace.logits(k)[:, -1].argmax(-1) == answers for k in range(1, trace.loops + 1)]
    return {
        f"accuracy_{d}@{k}": float(of_exit[sequences.depths == d].double().mean())
        for d in sorted(set(sequences.depths.tolist()))
        for k, of_exit in enumerate(right, start=1)
    }


def at_first_exit(history: list[Event], loops: int) -> dict[str, float]:
    """'ce_matched@k', the exits at the first evaluation at which CE(1) is at most `FIRST_EXIT`, and 'step_matched', its
    step; not numbers where there is none."""
    found = next((event for event in history if event["ce@1"] <= FIRST_EXIT), {})
    matched = {f"ce_matched@{k}": found.get(f"ce@{k}", math.nan) for k in range(1, loops + 1)}
    return matched | {"step_matched": found.get("step", math.nan)}


def _batches(sequences: Sequences, count: int, protocol: Protocol) -> Iterator[tuple[Tensor, Tensor]]:
    """The first `count` instances in equal batches."""
    size = min(count, protocol.history_instances)
    for begin in range(0, count, size):
        yield sequences.tokens[begin : begin + size], sequences.targets[begin : begin + size]
