"""A model under check, with inputs of its own and a measure of what rounding alone can do to it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from loopverify.checks.result import NotApplicableError, UnsoundRunError
from loopverify.checks.substitute import in_dtype
from loopverify.looped import Looped, Trace, unroll

__all__ = ["SAFETY", "SEED", "Subject", "exactly", "gap", "pin", "rms", "rounding", "token_gaps"]

SEED = 0
"""Of everything that a check draws, so that a result repeats."""
BATCH, TOKENS = 3, 10
SAFETY = 16.0
"""How far beyond the measured effect of one perturbation another order of summation may lead: the largest of a few
hundred tokens, over several operations a loop, against one draw."""
TOO_COARSE = 0.1
"""Relative. Where rounding alone may change a result by more than this, a comparison says nothing."""


def pin(seed: int = SEED) -> None:
    """Pin the global random numbers. torch.manual_seed would also leave a seed behind, and a stack trace at every call,
    for a CUDA that has not started yet."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


class Subject:
    """A model, tokens drawn for it, and how it is run: in eval mode, with the global random state pinned."""

    def __init__(self, model: Looped) -> None:
        self.model = model
        first = next(model.parameters(), None)
        self.device = first.device if first is not None else torch.device("cpu")
        self.generator = torch.Generator().manual_seed(SEED)
        # Without the step, whose faults are for the checks to name.
        idle = replace(model, step=lambda state, context, loop: state)
        probe = self.unroll(torch.zeros(1, 1, dtype=torch.int64, device=self.device), loops=1, model=idle)
        self.dtype = probe.states[0].dtype
        self.width = probe.states[0].shape[-1]
        self.vocab_size = model.vocab_size or _vocabulary(probe.logits(1))
        self.tokens = self.draw(BATCH, TOKENS)
        # Enough loops to tell the first, the last and those between apart; not more, for the sake of time.
        self.loops = min(max(model.trained_loops, 2), 4)

    def draw(self, batch: int, tokens: int) -> Tensor:
        """Random tokens (batch, tokens) of the model's vocabulary."""
        drawn = torch.randint(self.vocab_size, (batch, tokens), generator=self.generator)
        return drawn.to(self.device)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers in the form of `like`."""
        return torch.randn(like.shape, generator=self.generator, dtype=torch.float64).to(like.dtype).to(like.device)

    def others(self, tokens: Tensor) -> Tensor:
        """Tokens that differ from `tokens` everywhere."""
        if self.vocab_size < 2:
            raise NotApplicableError("a vocabulary of one token leaves nothing to exchange")
        shift = torch.randint(1, self.vocab_size, tokens.shape, generator=self.generator)
        return (tokens + shift.to(tokens.device)) % self.vocab_size

    def unroll(
        self, tokens: Tensor | None = None, loops: int | None = None, *, grad: bool = False, model: Looped | None = None
    ) -> Trace:
        """As `loopverify.unroll`, from a pinned random state.

        Raises:
            UnsoundRunError: within its trained loops, the model's own run has a state of another dtype than H_0, or one
                that is not finite (the run of a `model` given instead is for the caller to judge).
        """
        pin()
        tokens = self.tokens if tokens is None else tokens
        trace = unroll(model or self.model, tokens, self.loops if loops is None else loops, grad=grad)
        if model is None:
            _require_sound(trace.states[: self.model.trained_loops + 1])
        return trace

    def in_dtype(self, dtype: torch.dtype, *, grad: bool = False) -> tuple[Looped, Trace]:
        """The model with parameters and buffers in `dtype`, and its run of the subject's tokens.

        Raises:
            NotApplicableError: the model has no parameters to convert, or does not run in this dtype.
            UnsoundRunError: as `unroll`, in the model's own dtype.
        """
        _require_sound(self.trace.states)
        try:
            model = in_dtype(self.model, dtype)
            trace = self.unroll(model=model, grad=grad)
            trace.logits(trace.loops)
        except (RuntimeError, TypeError) as error:  # operations, and devices, without this dtype
            raise NotApplicableError(f"the model does not run with its parameters in {dtype}: {error}") from error
        return model, trace

    @cached_property
    def trace(self) -> Trace:
        """The run of `tokens` for `loops` loops."""
        return self.unroll()

    @cached_property
    def state_limit(self) -> float:
        """How far two states that should be equal may be apart, relative (see `gap`)."""
        return self._limit(logits=False)

    @cached_property
    def logits_limit(self) -> float:
        """How far two sets of logits that should be equal may be apart, relative (see `gap`)."""
        return self._limit(logits=True)

    @cached_property
    def rounding(self) -> float:
        """Relative error of one matrix product over D channels in the states' dtype: sqrt(D) roundings."""
        return rounding(self.dtype, self.width)

    def response(self, size: float, *, logits: bool) -> float:
        """Largest relative change of a state (or of logits) when every state is perturbed by `size`, relative."""

        def disturb(state: Tensor) -> Tensor:
            scale = rms(state).to(state)
            return state + size * scale * self.normal(state)

        def embed(tokens: Tensor) -> tuple[Tensor, Any]:
            state, context = self.model.embed(tokens)
            return disturb(state), context

        def step(state: Tensor, context: Any, loop: int) -> Tensor:
            return disturb(self.model.step(state, context, loop))

        disturbed = self.unroll(model=replace(self.model, embed=embed, step=step))
        exits = range(1, self.loops + 1)
        if logits:
            return max(gap(disturbed.logits(k), self.trace.logits(k)) for k in exits)
        return max(gap(disturbed.states[k], self.trace.states[k]) for k in exits)

    def _limit(self, *, logits: bool) -> float:
        limit = SAFETY * max(self.response(self.rounding, logits=logits), self.rounding)
        if not limit < TOO_COARSE:
            raise NotApplicableError(
                f"rounding in {self.dtype} alone may move the result by {limit:.2g}, relative, so that a comparison "
                "says nothing; check the model in float32 (or float64)"
            )
        return limit

    @cached_property
    def repeatable(self) -> bool:
        """Whether two runs of the same tokens, from different random states, agree."""
        pin(SEED + 1)
        other = unroll(self.model, self.tokens, self.loops)
        return gap(other.states[-1], self.trace.states[-1]) <= self.state_limit

    def require_repeatable(self) -> None:
        """Refuse to compare runs that draw different random numbers, as runs of different shapes do.

        Raises:
            NotApplicableError: the model is not `repeatable`.
        """
        if not self.repeatable:
            raise NotApplicableError(
                "two runs of the same tokens differ already, see checks determinism and sampled_depth"
            )


def _vocabulary(logits: object) -> int:
    """The last dimension of logits; 2 where there is none, which is for `logits_form` to say."""
    return logits.shape[-1] if isinstance(logits, Tensor) and logits.ndim > 0 else 2


def _require_sound(states: tuple[Tensor, ...]) -> None:
    first = states[0]
    for k, state in enumerate(states):
        if (state.dtype, state.device) != (first.dtype, first.device):
            moved = f"H_{k} is {state.dtype} on {state.device}, H_0 is {first.dtype} on {first.device}"
            raise UnsoundRunError(moved, check="state_dtype")
        if not bool(state.isfinite().all()):
            raise UnsoundRunError(f"H_{k} is not finite", check="trajectory_order")


def exactly(tensor: Tensor) -> Tensor:
    """The values of a tensor in float64, on the CPU: not every device has it."""
    return tensor.detach().cpu().double()


def rms(state: Tensor) -> Tensor:
    """Root mean square over the channels, (..., 1), in float64 on the CPU."""
    return exactly(state).square().mean(-1, keepdim=True).sqrt()


def rounding(dtype: torch.dtype, width: int) -> float:
    """Relative error of a sum of `width` terms in `dtype`: sqrt(width) independent roundings of one eps."""
    return torch.finfo(dtype).eps * math.sqrt(width)


def token_gaps(a: Tensor, b: Tensor) -> Tensor:
    """Distance of every token of a from that of b, both (..., T, D), relative to the rms norm of b's tokens."""
    a, b = exactly(a), exactly(b)
    scale = b.norm(dim=-1).square().mean().sqrt()
    apart = (a - b).norm(dim=-1)
    return torch.where(apart == 0, apart, apart / scale)  # 0 / 0 is no distance


def gap(a: Tensor, b: Tensor) -> float:
    """The largest of `token_gaps`: NaN when a value is not finite, infinite when the shapes differ."""
    return float(token_gaps(a, b).max()) if a.shape == b.shape else math.inf
