"""Recognize the norms of a model by their function, not by name, and compute them independently in float64.

To judge the rounding of a norm, its exact result is needed, and so its definition: rms or L2, with or without the mean,
gain stored as g or as g - 1, epsilon inside the root, outside of it or as a lower bound. Implementations differ in all
of these, and class names do not say which one it is. So every combination is computed in float64 and compared with the
module. At rms 1 and 10, where any usual epsilon is negligible, the right formula agrees within 2 %: this decides
whether the module is a norm. At rms 1e-3 the position of the epsilon matters: of the formulas that agree so far, the
closest one there is used. The value of epsilon is read from the module's attributes, so that `norm_numerics`
fails for a module whose code uses another value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from loopverify.checks.calls import recorded
from loopverify.checks.placement.normalizers import could_normalize
from loopverify.checks.subject import Subject, exactly

__all__ = ["Norm", "norms_of"]

ALIKE = 0.02
"""A module whose output differs by less than this, relative, from that of a known norm at rms 1 and 10 is this norm."""

Denominator = Callable[[Tensor, float], Tensor]
_DENOMINATORS: tuple[Denominator, ...] = (
    lambda square, eps: (square + eps).sqrt(),
    lambda square, eps: square.sqrt() + eps,
    lambda square, eps: square.sqrt().clamp_min(eps),
)
"""The denominator as a function of the (mean) square: epsilon inside the root, outside of it, or as a lower bound."""


@dataclass(frozen=True, eq=False)
class Norm:
    """A module that divides the last dimension by its size, with its definition."""

    name: str
    module: nn.Module
    width: int
    summed: bool
    """Whether the squares are summed over the channels (an L2 norm) and not averaged (an rms)."""
    centered: bool
    """Whether the mean is subtracted first (LayerNorm)."""
    gain_offset: float | None
    """The number added to the stored gain: 0 or 1; None if there is no gain."""
    eps: float
    denominator: Denominator

    def apply(self, x: Tensor) -> Tensor:
        """The module itself on x (1, T, C), with its parameters in x's dtype."""
        tensors = {name: p.detach().to(x.dtype) for name, p in self.module.named_parameters()}
        with torch.no_grad():
            result: Tensor = torch.func.functional_call(self.module, tensors, (x,))
        return result

    def exact(self, x: Tensor) -> Tensor:
        """What the module should return for x, by definition and in float64, from parameters rounded as in `apply`."""
        gain, bias = (getattr(self.module, name, None) for name in ("weight", "bias"))
        wide = exactly(x)
        if self.centered:
            wide = wide - wide.mean(-1, keepdim=True)
        square = wide.square().sum(-1, keepdim=True) if self.summed else wide.square().mean(-1, keepdim=True)
        result = wide / self.denominator(square, self.eps)
        if self.gain_offset is not None and isinstance(gain, Tensor):
            result = result * (exactly(gain.to(x.dtype)) + self.gain_offset)
        return result + exactly(bias.to(x.dtype)) if isinstance(bias, Tensor) else result


def norms_of(subject: Subject) -> list[Norm]:
    """The distinct norms that a run of the subject calls."""
    with recorded(could_normalize) as calls:
        trace = subject.unroll(loops=1)
        trace.logits(1)
    names = {module: name for root in subject.model.modules() for name, module in root.named_modules()}
    candidates = {call.module: call.given.shape[-1] for call in calls}
    found = []
    for module, width in candidates.items():
        name = names.get(module) or type(module).__name__
        if (norm := _recognize(subject, module, name, width)) is not None:
            found.append(norm)
    return found


def _recognize(subject: Subject, module: nn.Module, name: str, width: int) -> Norm | None:
    """Of the known norms that agree with the module at rms 1 and 10, the closest at rms 1e-3."""
    unit = subject.normal(torch.empty(1, 16, width, dtype=subject.dtype, device=subject.device))
    best = None
    for norm in _known(module, name, width):
        errors = [_relative_error(norm, scale * unit) for scale in (1.0, 10.0, 1e-3)]
        if max(errors[:2]) < ALIKE and (best is None or errors[2] < best[0]):
            best = (errors[2], norm)
    return best[1] if best else None


def _known(module: nn.Module, name: str, width: int) -> Iterator[Norm]:
    stated = [getattr(module, word, None) for word in ("eps", "epsilon", "variance_epsilon", "norm_eps")]
    parameter = next(module.parameters(), None)
    default = torch.finfo(parameter.dtype if parameter is not None else torch.float32).eps  # that of nn.RMSNorm
    eps = next((float(value) for value in stated if isinstance(value, float)), default)
    offsets = (0.0, 1.0) if isinstance(getattr(module, "weight", None), Tensor) else (None,)
    for summed, centered, offset, denominator in product((False, True), (False, True), offsets, _DENOMINATORS):
        yield Norm(name, module, width, summed, centered, offset, eps, denominator)


def _relative_error(norm: Norm, x: Tensor) -> float:
    computed, exact = exactly(norm.apply(x)), norm.exact(x)
    return float((computed - exact).norm() / exact.norm())
