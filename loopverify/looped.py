"""The interface of a looped model, and the driver that unrolls it.

Shapes: B batch, T tokens, D channels, V vocabulary, K loops. Loops count 1..K; H_0 is the embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from loopverify.arguments import check_tokens, is_count
from loopverify.errors import GradientCutError, InPlaceStepError, InputError

__all__ = ["Embed", "Looped", "Readout", "Step", "Trace", "unroll"]

Embed = Callable[[Tensor], tuple[Tensor, Any]]
Step = Callable[[Tensor, Any, int], Tensor]
Readout = Callable[[Tensor, Any, int, int], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Looped:
    """A looped language model: H_0 = embed(tokens), H_k = step(H_{k-1}), logits_k = readout(H_k).

    Each callable may be a function, an `nn.Module` or a bound method of one; `modules()` and `parameters()` return
    those of these modules, and of `module` if given.
    """

    embed: Embed
    """embed(tokens (B, T) int64) -> (state (B, T, D), context); context is anything that the steps need, or None."""
    step: Step
    """step(state, context, loop) -> next state (B, T, D); loop = 1..K. Must leave `state` unchanged."""
    readout: Readout
    """readout(state, context, loop, loops) -> logits (B, T, V) of exit `loop` of a run of `loops` loops. `state` is
    the state *before* any readout norm."""
    trained_loops: int
    """r0, the number of loops the model was (or will be) trained with."""
    name: str = "looped"
    vocab_size: int | None = None
    """V, if known without running the model; `unroll` then checks the range of the tokens."""
    module: nn.Module | None = None
    """The module that owns the parameters, if the callables do not lead to it (closures)."""
    branches: Callable[[Tensor, Any, int], list[tuple[str, Tensor]]] | None = None
    """branches(state, context, loop) -> [(sublayer name, residual output (B, T, D)), ...] in order, such that
    step(state) = state + the sum of the outputs; None if the step is not such a sum or does not expose it."""
    embed_masked: Callable[[Tensor, Tensor], tuple[Tensor, Any]] | None = None
    """embed_masked(tokens (B, T), mask (B, T) bool, True at real tokens) -> (state, context): `embed` under padding."""
    decode: Callable[[Tensor, Any, int], tuple[Tensor, Any]] | None = None
    """decode(tokens (B, t), cache or None, loops) -> (logits (B, t, V) of the last exit, cache): appends t tokens to
    the sequences in the cache. One with a method bound_to(model) is bound to this very view."""
    cache_slots: Callable[[Any], int] | None = None
    """cache_slots(cache) -> number of key/value slots in use; loops * layers in a complete cache."""
    exit_probabilities: Callable[[Trace], Tensor] | None = None
    """exit_probabilities(trace) -> (B, T, K): the probability that each token leaves at each exit."""
    choose_exit: Callable[[Trace, float], Tensor] | None = None
    """choose_exit(trace, threshold) -> (B, T) int64 in 1..K: the exit that a threshold selects for each token."""
    paths: Mapping[str, Callable[[Tensor, int], Tensor]] = field(default_factory=dict)
    """Other ways in which the model itself computes the logits of its last exit, by name:
    path(tokens, loops) -> (B, T, V). Each is expected to agree with `readout` of the last state."""
    penalty: Callable[[Trace], Tensor] | None = None
    """penalty(trace) -> scalar: the norm penalty of the model's own objective, if it has one."""
    reports: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Numbers that the model's own code logs, by quantity: "rms", "l2" and "mean_square" of a state (..., D), and
    "a_rad" of (state, update): ⟨u, b⟩/d. Their units are checked."""
    declares: frozenset[str] = frozenset()
    """Traits that the model declares; a check that a trait explains is skipped and says so. See `loopverify.checks`."""
    declared_with: tuple[Any, ...] = field(default=(), repr=False)
    """Not to be given: decode and the embed, step and readout it was declared with, as `replace` passes them on."""

    def __post_init__(self) -> None:
        for part in ("embed", "step", "readout"):
            if not callable(getattr(self, part)):
                raise InputError(f"Looped.{part} is {getattr(self, part)!r}; expected a callable or an nn.Module")
        if not is_count(self.trained_loops):
            raise InputError(f"Looped.trained_loops is {self.trained_loops!r}; expected an integer >= 1")
        if self.vocab_size is not None and not is_count(self.vocab_size):
            raise InputError(f"Looped.vocab_size is {self.vocab_size!r}; expected an integer >= 1, or None")
        # A view made by `replace` with another step must not go on decoding with the old one.
        if (bound_to := getattr(self.decode, "bound_to", None)) is not None:
            object.__setattr__(self, "decode", bound_to(self))
        if not self.declared_with or self.declared_with[0] is not self.decode:
            object.__setattr__(self, "declared_with", (self.decode, self.embed, self.step, self.readout))

    def replaced(self) -> list[str]:
        """Which of embed, step and readout `replace` has exchanged while keeping a `decode` that runs the old ones."""
        parts = ("embed", "step", "readout")
        return [part for part, old in zip(parts, self.declared_with[1:], strict=True) if getattr(self, part) != old]

    def modules(self) -> list[nn.Module]:
        """The distinct root modules behind the callables, in the order module, embed, step, readout."""
        candidates = [self.module, *(_owner(part) for part in (self.embed, self.step, self.readout))]
        return list({id(m): m for m in candidates if m is not None}.values())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter once, under its name inside the module that owns it."""
        seen: set[int] = set()
        for module in self.modules():
            for name, parameter in module.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield name, parameter

    def parameters(self) -> Iterator[nn.Parameter]:
        """Every parameter once."""
        return (parameter for _, parameter in self.named_parameters())


def _owner(part: object) -> nn.Module | None:
    bound = getattr(part, "__self__", part)
    return bound if isinstance(bound, nn.Module) else None


@dataclass(frozen=True, eq=False)
class Trace:
    """One run of a looped model: the states H_0..H_K, each in memory of its own, and the exits on demand."""

    model: Looped
    tokens: Tensor
    states: tuple[Tensor, ...]
    """H_0..H_K, each (B, T, D), before any readout norm."""
    context: Any
    grad: bool = True
    """Whether the exits record gradients as well."""

    @property
    def loops(self) -> int:
        """K, the number of loops that were run."""
        return len(self.states) - 1

    def first(self, loops: int) -> Trace:
        """The run cut after its first `loops` loops, 1..K: a run of fewer loops is the beginning of a longer one.

        Raises:
            InputError: the run has fewer loops.
        """
        if not is_count(loops) or loops > self.loops:
            raise InputError(
                f"the first {loops!r} loops of a trace of {self.loops}; expected an integer 1..{self.loops}"
            )
        return replace(self, states=self.states[: loops + 1])

    def logits(self, loop: int) -> Tensor:
        """Logits (B, T, V) of exit `loop` (1..K) of this run; computed at every call and not stored.

        Raises:
            InputError: the run has no such exit.
        """
        if not is_count(loop) or loop > self.loops:
            raise InputError(f"exit {loop!r} of a trace of {self.loops} loops; expected an integer 1..{self.loops}")
        with nullcontext() if self.grad else torch.no_grad():
            return self.model.readout(self.states[loop], self.context, loop, self.loops)


def unroll(model: Looped, tokens: Tensor, loops: int | None = None, grad: bool = False) -> Trace:
    """Run `model` for `loops` loops and keep every state.

    Args:
        tokens: (B, T) int64.
        loops: K; the trained loops when omitted.
        grad: record gradients, and verify that they can flow from H_K back to H_0.

    Raises:
        InputError: tokens are invalid, loops < 1, or a state is not a floating tensor of the shape of H_0.
        InPlaceStepError: a step changed a state that the trace holds.
        GradientCutError: with `grad`, a state does not depend differentiably on the state before it.
    """
    if not isinstance(model, Looped):
        raise InputError(
            f"unroll got a {type(model).__name__}; expected a loopverify.Looped. "
            "Describe the model with Looped(embed=..., step=..., readout=..., trained_loops=...)"
        )
    loops = model.trained_loops if loops is None else loops
    if not is_count(loops):
        raise InputError(f"loops is {loops!r}; expected an integer >= 1")
    check_tokens(tokens, model.vocab_size)
    # Changes in place are detected by version counters, which inference tensors do not have.
    with torch.inference_mode(mode=False), torch.set_grad_enabled(grad):
        return _run(model, tokens.clone() if tokens.is_inference() else tokens, loops, grad)


def _run(model: Looped, tokens: Tensor, loops: int, grad: bool) -> Trace:
    state, context = _embed(model, tokens)
    if grad and not state.requires_grad:
        state = state.detach().requires_grad_()
    states, versions = [state], [state._version]
    for loop in range(1, loops + 1):
        following = model.step(states[-1], context, loop)
        _check_state(following, states[0], f"step at loop {loop}")
        following = _own_memory(following, states, versions, loop)
        if grad and not _depends_on(following, states[-1]):
            raise GradientCutError(_cut_message(loop, following))
        states.append(following)
        versions.append(following._version)
    return Trace(model, tokens, tuple(states), context, grad)


def _embed(model: Looped, tokens: Tensor) -> tuple[Tensor, Any]:
    try:
        embedded = model.embed(tokens)
    except IndexError as error:
        low, high = tokens.min().item(), tokens.max().item()
        raise InputError(
            f"embed refused tokens in {low}..{high} ({error}); expected tokens of the model's vocabulary"
        ) from error
    if not (isinstance(embedded, tuple) and len(embedded) == 2):
        raise InputError(f"embed returned a {type(embedded).__name__}; expected a pair (state, context)")
    state, context = embedded
    _check_state(state, None, "embed")
    return state, context


def _check_state(state: object, like: Tensor | None, source: str) -> None:
    if not isinstance(state, Tensor) or not state.is_floating_point():
        seen = state.dtype if isinstance(state, Tensor) else type(state).__name__
        raise InputError(f"{source} returned {seen}; expected a floating tensor of shape (B, T, D)")
    if like is None:
        if state.ndim != 3:
            raise InputError(f"{source} returned shape {tuple(state.shape)}; expected (B, T, D)")
    elif state.shape != like.shape:
        raise InputError(
            f"{source} returned shape {tuple(state.shape)}; expected that of H_0, {tuple(like.shape)}: "
            "a looped state keeps its shape"
        )


def _own_memory(following: Tensor, states: list[Tensor], versions: list[int], loop: int) -> Tensor:
    """`following` in memory that no earlier state shares.

    Raises:
        InPlaceStepError: the step changed an earlier state.
    """
    for k, (state, version) in enumerate(zip(states, versions, strict=True)):
        if state._version != version:
            raise InPlaceStepError(
                f"step at loop {loop} changed H_{k} in place; expected a step that writes its result to new memory "
                "(h = h + b, not h += b), because every state is read out as well as passed on"
            )
    memory = following.untyped_storage().data_ptr()
    if any(state.untyped_storage().data_ptr() == memory for state in states):
        return following.clone()  # an identity or a view is correct, but states of a trace never alias
    return following


def _depends_on(later: Tensor, earlier: Tensor) -> bool:
    """Whether the autograd graph leads from `later` back to `earlier`."""
    if later.grad_fn is None:
        return False
    goal = earlier.grad_fn
    pending, seen = [later.grad_fn], {later.grad_fn}
    while pending:
        node = pending.pop()
        # A leaf has no grad_fn; the graph refers to it by its AccumulateGrad node.
        if node is goal or (goal is None and getattr(node, "variable", None) is earlier):
            return True
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                pending.append(parent)
    return False


def _cut_message(loop: int, state: Tensor) -> str:
    cause = (
        "its result does not require a gradient (torch.no_grad, .detach() or .data inside the step?)"
        if not state.requires_grad
        else "its result does not depend on the state it was given (a detach, or a truncated backward pass?)"
    )
    return (
        f"no gradient flows from H_{loop} back to H_{loop - 1}: {cause}. "
        "Later losses cannot train earlier loops; use grad=False if this is intended"
    )
