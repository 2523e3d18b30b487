"""The step loop: a model, its objective and a corpus in; a trained model and a stream of events out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from loopverify.errors import LoopverifyError
from loopverify.looped import Looped, unroll
from loopverify.models import LoopedTransformer
from loopverify.objectives import Terms
from train.data import Corpus, Windows
from train.evaluate import evaluate
from train.spec import RunSpec

__all__ = ["DivergedError", "Event", "Report", "train"]

Event = dict[str, Any]
"""One line of metrics.jsonl; 'event' is 'step', 'eval' or 'end'."""
Report = Callable[[Event], None]

STEP_EVENT_EVERY = 10
# Looking at a loss waits for the accelerator; on a CPU it is free.
_LOOK_EVERY = {"cpu": 1}
_LOOK_EVERY_ELSEWHERE = 20


class DivergedError(LoopverifyError):
    """The loss stopped being a finite number."""


@contextmanager
def _flushed_denormals() -> Iterator[None]:
    """Gradients of confident exits underflow; a CPU takes twice as long for a step full of denormal numbers."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@_flushed_denormals()
def train(spec: RunSpec, corpus: Corpus, report: Report) -> tuple[LoopedTransformer, dict[str, float]]:
    """Train one run from its seed; returns the model and its held-out metrics (see `train.evaluate`).

    Raises:
        DivergedError: at the first step whose loss is not finite, with the likely cause.
    """
    p = spec.preset
    device = torch.device(spec.device)
    torch.manual_seed(spec.seed)
    module = spec.model(corpus.vocab_size).to(device)
    model = module.looped(spec.condition)
    windows = Windows(corpus.train, p.seq_len, p.stride, name="training text")
    held_out = Windows(corpus.held_out, p.seq_len, p.seq_len, name="held-out text")
    steps = p.total_steps(len(windows))

    def held_out_metrics(count: int) -> dict[str, float]:
        with _precision(device):
            return evaluate(model, _on(device, held_out.evenly_spaced(count, p.batch)))

    stepper = _Stepper(spec, model, device, steps)
    for step in range(1, steps + 1):
        module.set_progress((step - 1) / steps)
        stepper.step(step, *windows.batch(windows.order(step - 1, p.batch, spec.seed)))
        if step % STEP_EVENT_EVERY == 0 or step == steps:
            report({"event": "step", "step": step, "steps": steps, **stepper.facts()})
        if step % p.history_every == 0 or step == steps:
            report({"event": "eval", "step": step, **held_out_metrics(p.history_windows)})
    metrics = held_out_metrics(p.eval_windows)
    report({"event": "end", "step": steps, **metrics})
    return module, metrics


def _on(device: torch.device, batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    return ((tokens.to(device), targets.to(device)) for tokens, targets in batches)


def _precision(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 autocast on CUDA, as in the paper (table 9); float32 on a CPU."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()


@dataclass
class _Stepper:
    """Optimizer steps of one run, and what the last one looked like."""

    spec: RunSpec
    model: Looped
    device: torch.device
    steps: int
    """Of the whole run."""
    terms: dict[str, Tensor] = field(default_factory=dict)
    gradient_norm: Tensor | None = None
    unseen: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)
    """(step, loss, gradient norm) not yet looked at."""
    gradient_before: float | None = None
    """The last gradient norm that was looked at and found finite."""

    def __post_init__(self) -> None:
        p = self.spec.preset
        self.objective = self.spec.objective()
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=p.lr, weight_decay=p.weight_decay, fused=True)
        self.started, self.tokens_done = time.perf_counter(), 0

    def step(self, step: int, tokens: Tensor, targets: Tensor) -> None:
        p = self.spec.preset
        tokens, targets = tokens.to(self.device), targets.to(self.device)
        for group in self.optimizer.param_groups:
            group["lr"] = p.learning_rate(step, self.steps)
        with _precision(self.device):
            terms: Terms = self.objective(unroll(self.model, tokens, p.loops, grad=True), targets)
            loss = terms.total
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.parameters, p.grad_clip)
        self.terms = {name: part.detach() for name, part in terms.parts.items()}
        self.unseen.append((step, loss.detach(), self.gradient_norm))
        # Before the update: a model that is about to be ruined still tells why.
        if step % _LOOK_EVERY.get(self.device.type, _LOOK_EVERY_ELSEWHERE) == 0:
            self._look(tokens)
        self.optimizer.step()
        self.tokens_done += tokens.numel()

    def facts(self) -> Event:
        """Loss terms (nats), gradient norm before clipping (L2), learning rate and mean throughput."""
        assert self.gradient_norm is not None
        return {
            **{f"loss/{name}": float(part) for name, part in self.terms.items()},
            "gradient_norm": float(self.gradient_norm),
            "lr": self.optimizer.param_groups[0]["lr"],
            "tokens_per_s": self.tokens_done / (time.perf_counter() - self.started),
        }

    def _look(self, tokens: Tensor) -> None:
        seen, self.unseen = self.unseen, []
        for step, loss, gradient in ((step, float(loss), float(gradient)) for step, loss, gradient in seen):
            if not (math.isfinite(loss) and math.isfinite(gradient)):
                before = "none" if self.gradient_before is None else f"{self.gradient_before:.3g}"
                raise DivergedError(
                    f"{self.spec.label}: at step {step} the loss is {loss:.4g} and its gradient norm {gradient:.4g}; "
                    f"expected finite numbers. {self._likely_cause(tokens)} (lr "
                    f"{self.optimizer.param_groups[0]['lr']:g}, last finite gradient norm before clipping: {before}). "
                    f"{self._advice()}"
                )
            self.gradient_before = gradient

    def _advice(self) -> str:
        steadier = "Lower the learning rate or lengthen the warm-up"
        if self.spec.penalized:
            return f"{steadier}, or lower the weight of the norm penalty ({self.spec.penalty:g})"
        if self.spec.readout == "raw":
            return steadier
        return f"{steadier}; a norm penalty or a raw readout keeps the scale of the state in sight of the loss"

    def _likely_cause(self, tokens: Tensor) -> str:
        for name, parameter in self.model.named_parameters():
            if not parameter.isfinite().all():
                return f"Likely cause: an earlier update left parameter {name!r} non-finite"
        with torch.no_grad():
            rms = [float(state.float().square().mean().sqrt()) for state in unroll(self.model, tokens).states]
        told = ", ".join(f"H_{k} {value:.3g}" for k, value in enumerate(rms))
        for k, value in enumerate(rms):
            if not math.isfinite(value):
                return f"Likely cause: the state overflows at loop {k} (rms by loop: {told})"
        return f"Likely cause: the exits or the gradient overflow, not the states (rms by loop: {told})"
