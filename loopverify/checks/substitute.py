"""The same model with other tensors in place of its parameters and buffers, without a change to the model.

Checks need copies of a model: in float64, in bfloat16, with perturbed parameters, or with parameters to be optimized. A
`Looped` is a record of callables, and `copy.deepcopy` does not copy what a closure or a bound method refers to: such a
copy would still compute with the original parameters, silently. So nothing is copied. Each callable is wrapped to run
inside `torch.func.functional_call`, which exchanges the tensors in their modules for the time of one call. This reaches
every module that `Looped.modules()` finds, whoever calls it, and is undone also after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from loopverify.checks.result import NotApplicableError
from loopverify.looped import Looped

__all__ = ["floating_tensors", "in_dtype", "trainable", "with_tensors"]

_CALLABLES = ("embed", "step", "readout", "branches", "embed_masked", "decode", "exit_probabilities", "choose_exit")


class _Holder(nn.ModuleList):
    """All modules of a model as children of one module, so that `functional_call` can name their tensors."""

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


def floating_tensors(model: Looped) -> dict[str, Tensor]:
    """The parameters and buffers of a floating dtype, each once, by the names that `with_tensors` uses."""
    holder = _Holder(model.modules())
    named = [*holder.named_parameters(), *holder.named_buffers()]
    return {name: tensor for name, tensor in named if tensor.is_floating_point()}


def trainable(model: Looped) -> dict[str, Tensor]:
    """The parameters with requires_grad, detached, by the names of `floating_tensors`."""
    return {name: tensor.detach() for name, tensor in floating_tensors(model).items() if tensor.requires_grad}


def with_tensors(model: Looped, tensors: Mapping[str, Tensor]) -> Looped:
    """`model` computing with `tensors` (by the names of `floating_tensors`) instead of its own; ties are kept."""
    holder = _Holder(model.modules())
    # A tied tensor has one name in `tensors` but several slots in the modules; all of them get the replacement.
    replacements = {id(tensor): tensors[name] for name, tensor in floating_tensors(model).items() if name in tensors}
    places = {place: replacements[id(tensor)] for place, tensor in _places(holder) if id(tensor) in replacements}

    def substituted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            # tie_weights=False, since all slots are listed: with True, torch 2.13 does not restore a module that is
            # reached by two names.
            return functional_call(holder, places, (lambda: function(*arguments),), tie_weights=False)

        return call

    parts: dict[str, Any] = {
        name: substituted(part) for name in _CALLABLES if (part := getattr(model, name)) is not None
    }
    paths = {name: substituted(path) for name, path in model.paths.items()}
    # The modules are passed explicitly: `Looped.modules()` cannot find them through the wrapped callables.
    return replace(model, **parts, paths=paths, module=holder)


def _places(holder: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every slot of a parameter or buffer by its path: each module once even if it has several names, tied tensors in
    all their slots."""
    for path, module in holder.named_modules():
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            yield f"{path}.{name}", tensor


def in_dtype(model: Looped, dtype: torch.dtype) -> Looped:
    """`model` with every floating parameter and buffer in `dtype`.

    Raises:
        NotApplicableError: the model has no parameters to convert.
    """
    tensors = floating_tensors(model)
    if not tensors:
        raise NotApplicableError(
            f"no parameters to convert to {dtype}; name the module that owns them in Looped(module=...)"
        )
    return with_tensors(model, {name: tensor.detach().to(dtype) for name, tensor in tensors.items()})
