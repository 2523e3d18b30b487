"""The gradient of a loss at each state: direct, from the terms that read it, and indirect, through later loops.

The two have to be separated because the lemmas speak of the direct one. A normalized exit sends no radial gradient to
its own state, but the loops after it do: their angular step is b_perp/s, so later losses depend on s, the less the
larger s is. In the total gradient this fading indirect part would be mistaken for visibility.

Shapes: B batch, T tokens, D channels, K loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.objectives import Terms
from loopverify.theory import visibility

__all__ = [
    "ObjectiveLike",
    "RadialGradient",
    "direct_gradients",
    "indirect_gradients",
    "radial_gradient",
    "working_dtype",
]

ObjectiveLike = Callable[[Trace, Tensor], Terms]
"""(trace, targets) -> named terms: what `loopverify.objectives.named` returns, or anything of that form."""


@dataclass(frozen=True, kw_only=True)
class RadialGradient:
    """How much of a gradient at a state lies along the state itself."""

    signal: float
    """dL/d log s, summed over tokens, in units of the loss (nats); positive where descent reduces the scale."""
    fraction: float | None
    """Mean over tokens of |<g, H>| / (||g||_2 ||H||_2); None where no gradient arrives."""
    floor: float
    """The fraction that rounding alone leaves on a perfectly blind readout in the dtype that was used."""

    @property
    def reading(self) -> str:
        """The fraction compared with the floor: 'no gradient', 'at the floor' or 'above it by ×N'."""
        if self.fraction is None:
            return "no gradient"
        if self.fraction <= self.floor:
            return "at the floor"
        return f"above it by ×{self.fraction / self.floor:.3g}"


def direct_gradients(trace: Trace, targets: Tensor, objective: ObjectiveLike) -> dict[str, tuple[Tensor, ...]]:
    """Gradient of each term at H_1..H_K with the recurrence cut: only what reads H_k itself counts.

    The objective gets a trace whose states are detached leaves. It cannot tell the difference, and no gradient can pass
    from one state to an earlier one.

    Returns:
        For each term K tensors (B, T, D); zeros where the term does not read the state.

    Raises:
        InputError: the objective returns something other than `Terms` of scalars.
    """
    start, *states = (state.detach() for state in trace.states)
    leaves = [state.requires_grad_() for state in states]
    cut = Trace(trace.model, trace.tokens, (start, *leaves), trace.context)
    with torch.enable_grad():
        terms = objective(cut, targets)
    return {name: _gradients(term, leaves) for name, term in _checked(terms).items()}


def indirect_gradients(trace: Trace, direct: Mapping[str, tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Gradient at H_1..H_K that arrives through later loops; with the direct gradient it adds up to the total.

    With d_k the direct gradient and J_k the Jacobian of loop k, the indirect gradient i_k at H_k follows backward from
    i_K = 0:

        i_k = J_{k+1}' (d_{k+1} + i_{k+1}).

    Each loop but the first is run once more, one at a time from its stored state: the memory of one loop suffices, and
    the trace need not have recorded gradients.

    Args:
        direct: the result of `direct_gradients` for the same trace.

    Returns:
        K tensors (B, T, D); zeros at H_K, and where a step cuts the gradient.
    """
    direct_totals = [torch.stack(terms).sum(0) for terms in zip(*direct.values(), strict=True)]
    indirect = [torch.zeros_like(direct_totals[-1])]
    for loop in range(trace.loops, 1, -1):
        indirect.append(_pull_back(trace, loop, direct_totals[loop - 1] + indirect[-1]))
    return tuple(reversed(indirect))


def radial_gradient(gradient: Tensor, state: Tensor, dtype: torch.dtype) -> RadialGradient:
    """The radial part of a gradient at a state, both (B, T, D), computed in `dtype`."""
    fractions = visibility.radial_fraction(gradient, state)
    return RadialGradient(
        signal=float(visibility.radial_signal(gradient, state).sum()),
        fraction=None if fractions.isnan().all() else float(fractions.nanmean()),
        floor=visibility.floor(dtype, state.shape[-1]),
    )


def working_dtype(trace: Trace) -> torch.dtype:
    """The coarsest floating dtype among the states, the parameters and autocast: it sets the rounding floor."""
    dtypes = {state.dtype for state in trace.states} | {parameter.dtype for parameter in trace.model.parameters()}
    device = trace.tokens.device.type
    if torch.is_autocast_enabled(device):
        dtypes.add(torch.get_autocast_dtype(device))
    return max((dtype for dtype in dtypes if dtype.is_floating_point), key=lambda dtype: torch.finfo(dtype).eps)


def _gradients(term: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    if not term.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    return torch.autograd.grad(term, leaves, retain_graph=True, materialize_grads=True)


def _pull_back(trace: Trace, loop: int, gradient: Tensor) -> Tensor:
    """The gradient at H_{loop-1} that follows from `gradient` at H_loop by the chain rule."""
    state = trace.states[loop - 1].detach().requires_grad_()
    with torch.enable_grad():
        following = trace.model.step(state, trace.context, loop)
    if not following.requires_grad:
        return torch.zeros_like(state)
    return torch.autograd.grad(following, state, gradient.to(following.dtype), materialize_grads=True)[0]


def _checked(terms: object) -> Mapping[str, Tensor]:
    parts = getattr(terms, "parts", None)
    if not isinstance(parts, Mapping) or not parts:
        raise InputError(
            f"the objective returned a {type(terms).__name__}; expected loopverify.objectives.Terms with at least one "
            "named part, as in Terms({'loss': value})"
        )
    for name, term in parts.items():
        if not isinstance(term, Tensor) or term.numel() != 1:
            seen = tuple(term.shape) if isinstance(term, Tensor) else type(term).__name__
            raise InputError(f"term {name!r} of the objective is {seen}; expected a scalar tensor")
    return parts
