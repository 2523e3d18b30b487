"""A model under check, with tokens drawn for it, and limits for comparisons of its runs.

Most checks compare two runs that should agree but round differently: a chunk and the whole, a row alone and in a batch,
with and without a cache. How far may they differ? No constant suffices: rounding errors grow with depth and with the
gain of the model, and a limit with room for every model misses faults of well-behaved ones. So the limit is measured on
the model: every state of a run is perturbed by noise as large as the rounding of one matrix product (`rounding`), and
the largest change of a state or of logits (`response`), times `SAFETY`, is the limit. A fault must therefore exceed
what rounding does to this model in its own dtype. Where that is so much that a comparison is meaningless (bfloat16),
the check is skipped instead of passed.
"""

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
"""Seed of everything that a check draws, so that results are reproducible."""
BATCH, TOKENS = 3, 10
SAFETY = 16.0
"""Factor between the measured effect of one perturbation and the limit. One random draw stands for several operations
per loop, and the limit must hold for the worst of a few hundred tokens."""
TOO_COARSE = 0.1
"""Relative. If rounding alone may change a result by more than this, a comparison is meaningless."""


def pin(seed: int = SEED) -> None:
    """Seed the global random generators. (torch.manual_seed would also queue a seed, with a stack trace, for a CUDA
    that is not initialized.)"""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


class Subject:
    """A model, tokens drawn for it, and runs of it in eval mode with the global random state seeded."""

    def __init__(self, model: Looped) -> None:
        self.model = model
        first = next(model.parameters(), None)
        self.device = first.device if first is not None else torch.device("cpu")
        self.generator = torch.Generator().manual_seed(SEED)
        # The step is left out here: its faults are for the checks to report.
        idle = replace(model, step=lambda state, context, loop: state)
        probe = self.unroll(torch.zeros(1, 1, dtype=torch.int64, device=self.device), loops=1, model=idle)
        self.dtype = probe.states[0].dtype
        self.width = probe.states[0].shape[-1]
        self.vocab_size = model.vocab_size or _vocabulary(probe.logits(1))
        self.tokens = self.draw(BATCH, TOKENS)
        # Enough loops to have a first, a last and some in between; no more, to save time.
        self.loops = min(max(model.trained_loops, 2), 4)

    def draw(self, batch: int, tokens: int) -> Tensor:
        """Random tokens (batch, tokens) of the model's vocabulary."""
        drawn = torch.randint(self.vocab_size, (batch, tokens), generator=self.generator)
        return drawn.to(self.device)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers with the shape, dtype and device of `like`."""
        return torch.randn(like.shape, generator=self.generator, dtype=torch.float64).to(like.dtype).to(like.device)

    def others(self, tokens: Tensor) -> Tensor:
        """Tokens that differ from `tokens` everywhere."""
        if self.vocab_size < 2:
            raise NotApplicableError("the vocabulary has one token; the check must exchange tokens")
        shift = torch.randint(1, self.vocab_size, tokens.shape, generator=self.generator)
        return (tokens + shift.to(tokens.device)) % self.vocab_size

    def unroll(
        self, tokens: Tensor | None = None, loops: int | None = None, *, grad: bool = False, model: Looped | None = None
    ) -> Trace:
        """As `loopverify.unroll`, with the global random state seeded.

        Raises:
            UnsoundRunError: within its trained loops, the model's own run has a state that is not finite or whose
                dtype differs from that of H_0. (The run of another `model` is not checked.)
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
        """The largest relative difference (see `gap`) of two states that should be equal."""
        return self._limit(logits=False)

    @cached_property
    def logits_limit(self) -> float:
        """The largest relative difference (see `gap`) of two sets of logits that should be equal."""
        return self._limit(logits=True)

    @cached_property
    def rounding(self) -> float:
        """Relative error of one matrix product over D channels in the states' dtype: sqrt(D) roundings."""
        return rounding(self.dtype, self.width)

    def response(self, size: float, *, logits: bool) -> float:
        """Largest relative change of a state (or of logits) if every state is perturbed by `size`, relative."""

        def perturbed(state: Tensor) -> Tensor:
            scale = rms(state).to(state)
            return state + size * scale * self.normal(state)

        def embed(tokens: Tensor) -> tuple[Tensor, Any]:
            state, context = self.model.embed(tokens)
            return perturbed(state), context

        def step(state: Tensor, context: Any, loop: int) -> Tensor:
            return perturbed(self.model.step(state, context, loop))

        other = self.unroll(model=replace(self.model, embed=embed, step=step))
        exits = range(1, self.loops + 1)
        if logits:
            return max(gap(other.logits(k), self.trace.logits(k)) for k in exits)
        return max(gap(other.states[k], self.trace.states[k]) for k in exits)

    def _limit(self, *, logits: bool) -> float:
        # At least the perturbation itself: a model that contracts differences rounds its last operation all the same.
        limit = SAFETY * max(self.response(self.rounding, logits=logits), self.rounding)
        if not limit < TOO_COARSE:
            raise NotApplicableError(
                f"rounding in {self.dtype} alone may move the result by {limit:.2g}, relative, so a comparison "
                "is meaningless; check the model in float32 (or float64)"
            )
        return limit

    @cached_property
    def repeatable(self) -> bool:
        """Whether two runs of the same tokens, from different random states, agree."""
        pin(SEED + 1)
        other = unroll(self.model, self.tokens, self.loops)
        return gap(other.states[-1], self.trace.states[-1]) <= self.state_limit

    def require_repeatable(self) -> None:
        """Skip a check that compares runs of different shapes, which draw different random numbers.

        Raises:
            NotApplicableError: the model is not `repeatable`.
        """
        if not self.repeatable:
            raise NotApplicableError("two runs of the same tokens differ, see checks determinism and sampled_depth")


def _vocabulary(logits: object) -> int:
    """The last dimension of logits; 2 if there is none, which `logits_form` reports."""
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
    """The values of a tensor in float64, on the CPU, since some devices have no float64."""
    return tensor.detach().cpu().double()


def rms(state: Tensor) -> Tensor:
    """Root mean square over the channels, (..., 1), in float64 on the CPU."""
    return exactly(state).square().mean(-1, keepdim=True).sqrt()


def rounding(dtype: torch.dtype, width: int) -> float:
    """Relative error of a sum of `width` terms in `dtype`: sqrt(width) independent roundings of one eps."""
    return torch.finfo(dtype).eps * math.sqrt(width)


def token_gaps(a: Tensor, b: Tensor) -> Tensor:
    """Distances ‖a_t − b_t‖₂ of all tokens of a and b, (..., T, D), divided by the rms over b's tokens of ‖b_t‖₂.

    The divisor is common to all tokens: one whose state or logits happen to be near zero must not raise the result.
    """
    a, b = exactly(a), exactly(b)
    scale = b.norm(dim=-1).square().mean().sqrt()
    distance = (a - b).norm(dim=-1)
    return torch.where(distance == 0, distance, distance / scale)  # equal zeros: 0, not 0 / 0


def gap(a: Tensor, b: Tensor) -> float:
    """The largest of `token_gaps`: NaN when a value is not finite, infinite when the shapes differ."""
    return float(token_gaps(a, b).max()) if a.shape == b.shape else math.inf
