"""Preset: what the conditions and seeds of a study share. A run's key contains its values, but not its name."""

from __future__ import annotations

import math
from dataclasses import dataclass

from loopverify.errors import InputError
from train.data import DataSpec, TaskSpec

__all__ = ["Preset"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Model shape, data and optimization of one study."""

    name: str
    d_model: int
    layers: int
    heads: int
    d_ff: int
    sandwich_norm: bool = False
    """Whether every residual branch has a norm after as well as before it."""
    rope_theta: float = 10_000.0
    tied_head: bool
    loops: int
    """K, the loops of every training step."""
    dropout: float
    data: DataSpec | TaskSpec
    """A text, whose windows are the examples, or a task, whose instances are drawn again at every step."""
    seq_len: int
    """T, tokens per window or instance."""
    stride: int
    """Tokens between the starts of neighboring windows."""
    batch: int
    """B, windows or instances per step."""
    steps: int | None = None
    """Optimizer steps; None: the steps of `epochs` passes over the windows."""
    epochs: int | None = None
    lr: float
    """Peak learning rate."""
    min_lr: float | None = None
    """Learning rate of the last step, reached by a half cosine from the end of the warm-up; None: the rate stays at
    its peak."""
    warmup_steps: int
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    """Upper limit of the L2 norm of the whole gradient."""
    eval_windows: int
    """Held-out windows (evenly spaced) or instances of the final evaluation."""
    history_windows: int
    """Held-out windows or instances of the evaluations during training."""
    history_every: int
    """Steps between evaluations during training."""
    first_exit: float | None = None
    """CE(1) in nats per token at which conditions are compared at equal progress: a result contains the exits at the
    first evaluation with CE(1) at or below it. None: no such comparison."""
    threads: int | None = None
    """CPU threads of the process; None: torch's own choice. They determine the order of sums and thereby the result."""

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InputError(f"preset {self.name!r}: steps={self.steps}, epochs={self.epochs}; expected one of the two")
        for field in ("loops", "seq_len", "stride", "batch", "eval_windows", "history_windows", "history_every"):
            if getattr(self, field) < 1:
                raise InputError(f"{field} is {getattr(self, field)}; expected an integer >= 1")
        for field in ("steps", "epochs", "threads"):
            if (value := getattr(self, field)) is not None and value < 1:
                raise InputError(f"{field} is {value}; expected an integer >= 1")
        for field in ("lr", "grad_clip"):
            if not getattr(self, field) > 0:
                raise InputError(f"{field} is {getattr(self, field)}; expected a number > 0")
        if isinstance(self.data, TaskSpec) and (self.epochs is not None or self.seq_len != self.data.task.length):
            raise InputError(
                f"preset {self.name!r}: seq_len={self.seq_len}, epochs={self.epochs}; expected "
                f"{self.data.task.length}, the length of an instance of {self.data.name}, and steps in place of epochs"
            )
        if self.min_lr is not None and not 0 <= self.min_lr <= self.lr:
            raise InputError(f"min_lr is {self.min_lr}; expected a number in 0..{self.lr}, the peak, or None")

    @property
    def task(self) -> str | None:
        """The name of the task on which its runs are trained; None for text."""
        return self.data.name if isinstance(self.data, TaskSpec) else None

    def learning_rate(self, step: int, steps: int) -> float:
        """The learning rate of step 1..steps."""
        if self.min_lr is None or step <= self.warmup_steps:
            return self.lr * min(1.0, step / max(1, self.warmup_steps))
        done = (step - self.warmup_steps) / (steps - self.warmup_steps)
        return self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * done)) / 2

    def total_steps(self, windows: int | None) -> int:
        """Optimizer steps of a run over a training text of `windows` windows; None for a task."""
        return self.steps if self.steps is not None else (self.epochs or 1) * ((windows or 0) // self.batch)
