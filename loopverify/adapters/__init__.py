"""Third-party models as `Looped`: recognized by their structure, or described by the paths of their parts."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from loopverify.adapters.architecture import Architecture, Options
from loopverify.adapters.dory import DORY
from loopverify.adapters.hrm import HRM
from loopverify.adapters.huginn import HUGINN
from loopverify.adapters.inkling import INKLING, INKLING_VISION
from loopverify.adapters.ouro import OURO
from loopverify.adapters.paths import BuildContext, CallBlock, Parts, by_parts, suggest
from loopverify.errors import InputError
from loopverify.looped import Looped

__all__ = ["ARCHITECTURES", "Architecture", "adapt"]


def _own_view(module: Any, options: Options) -> Looped:
    view = module.looped()
    if not isinstance(view, Looped):
        raise InputError(f"{type(module).__name__}.looped() returned a {type(view).__name__}; expected a Looped")
    return dataclasses.replace(view, trained_loops=options.loops(view.trained_loops), name=options.name or view.name)


ARCHITECTURES = (
    Architecture(name="a module with a method looped()", parts=("looped.__func__",), build=_own_view),
    DORY,
    HRM,
    INKLING,
    INKLING_VISION,
    OURO,
    HUGINN,
)
"""Tried in this order; the first one all of whose parts a module has is used."""


def adapt(
    module: nn.Module | Looped,
    *,
    embed: str | None = None,
    block: str | None = None,
    head: str | None = None,
    readout_norm: str | None = None,
    loop_norm: str | None = None,
    call: CallBlock | None = None,
    context: BuildContext | None = None,
    trained_loops: int | None = None,
    name: str | None = None,
    state_seed: int | None = 0,
) -> Looped:
    """A `Looped` view of a module of known architecture, or of any module by the paths of its parts.

    Nothing is copied and the module is not changed: the view calls the module's own parts, and the driver decides how
    often. A `Looped` is returned unchanged.

    Args:
        module: a module whose structure is known (`ARCHITECTURES`), or any module if `embed`, `block`, `head` and
            `trained_loops` are given.
        embed, block, head, readout_norm, loop_norm: dotted paths inside the module; see `adapters.paths.Parts`.
        call: call(block_module, state, context) -> result, for blocks that take more than the state (B, T, D). The
            first element of a result (hidden, ...) is the state.
        context: context(tokens, H_0) -> what `call` needs in addition to the state.
        trained_loops: r0; read from the module's configuration by default if its architecture is known.
        state_seed: seed of the initial state, for architectures that draw it at random; None keeps it random, and the
            view then declares "random_state".

    Raises:
        InputError: an unknown structure, a path that does not exist, or options that exclude each other.
        MissingDependencyError: the module is a model of transformers, which is not installed.
    """
    parts = {
        "embed": embed,
        "block": block,
        "head": head,
        "readout_norm": readout_norm,
        "loop_norm": loop_norm,
        "call": call,
        "context": context,
    }
    given = {part: value for part, value in parts.items() if value is not None}
    if isinstance(module, Looped):
        return _unchanged(module, given | {"trained_loops": trained_loops, "name": name})
    if not isinstance(module, nn.Module):
        raise InputError(f"adapt got a {type(module).__name__}; expected an nn.Module or a Looped")
    if given:
        return _described(module, given, trained_loops, name)
    return _recognized(module, Options(trained_loops=trained_loops, name=name, state_seed=state_seed))


def _unchanged(model: Looped, options: dict[str, object]) -> Looped:
    idle = [option for option, value in options.items() if value is not None]
    if idle:
        raise InputError(
            f"adapt got a Looped together with {', '.join(idle)}, which would have no effect; "
            "use dataclasses.replace to change a Looped"
        )
    return model


def _described(module: nn.Module, given: dict[str, Any], trained_loops: int | None, name: str | None) -> Looped:
    missing = [part for part in ("embed", "block", "head") if part not in given]
    if trained_loops is None or missing:
        lacking = [*missing, *(["trained_loops"] if trained_loops is None else [])]
        raise InputError(
            f"adapt got {', '.join(given)} without {', '.join(lacking)}; to describe a module by its parts, give "
            "embed, block, head and trained_loops"
        )
    return by_parts(module, Parts(**given), trained_loops, name)


def _recognized(module: nn.Module, options: Options) -> Looped:
    for architecture in ARCHITECTURES:
        if not architecture.missing(module):
            return architecture.build(module, options)
    raise InputError(_unknown_structure(module))


def _unknown_structure(module: nn.Module) -> str:
    lines = [f"cannot adapt {type(module).__name__}: its structure matches no known architecture"]
    for architecture in ARCHITECTURES:
        missing = architecture.missing(module)
        present = [part for part in architecture.parts if part not in missing]
        if present:
            lines.append(f"  like {architecture.name}, it has {', '.join(present)}; it lacks {', '.join(missing)}")
    known = ", ".join(architecture.name for architecture in ARCHITECTURES)
    lines.append(f"known: {known}")
    found = suggest(module)
    for role, candidates in found.items():
        lines.append(f"  could be its {role}: {', '.join(candidates) or 'nothing found'}")
    roles = ", ".join(f'{role}="{candidates[0] if candidates else "..."}"' for role, candidates in found.items())
    lines.append(f"name its parts: lv.adapt(module, {roles}, trained_loops=...)")
    lines.append(
        "or write the three callables yourself: lv.Looped(embed=..., step=..., readout=..., trained_loops=...)"
    )
    return "\n".join(lines)
