"""Adapt any module by the paths of its parts: `adapt(module, embed="tok", block="layers", head="lm_head", ...)`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from loopverify.errors import InputError
from loopverify.looped import Looped

__all__ = ["BuildContext", "CallBlock", "Parts", "by_parts", "find_part", "suggest"]

CallBlock = Callable[[nn.Module, Tensor, Any], Tensor | tuple[Tensor, ...]]
BuildContext = Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Where the parts of a looped model are inside a module, as dotted paths ("model.layers", "blocks.0")."""

    embed: str
    """tokens (B, T) -> H_0 (B, T, D)."""
    block: str
    """One loop: a module, or a ModuleList applied in order."""
    head: str
    """(B, T, D) -> logits (B, T, V); an nn.Embedding is applied transposed (a tied head)."""
    readout_norm: str | None = None
    """Applied before the head."""
    loop_norm: str | None = None
    """Applied to the state at the end of every loop. If this is also the path of the readout norm, one application
    serves both the readout and the next loop (as in Ouro), and the state is taken before it."""
    call: CallBlock | None = None
    """call(module, state, context) -> the module's result, for a block that takes other arguments than the state."""
    context: BuildContext | None = None
    """context(tokens (B, T), H_0) -> what else `call` needs: masks, rotary tables, positions."""


def by_parts(module: nn.Module, parts: Parts, trained_loops: int, name: str | None) -> Looped:
    """The `Looped` view of `module` that `parts` describes.

    Raises:
        InputError: a path does not exist, or does not lead to a module.
    """
    view = _View(module, parts)
    return Looped(
        embed=view.embed,
        step=view.step,
        readout=view.readout,
        trained_loops=trained_loops,
        name=name or type(module).__name__,
        vocab_size=getattr(view.embedding, "num_embeddings", None),
        module=module,
    )


class _View:
    def __init__(self, module: nn.Module, parts: Parts) -> None:
        self.embedding = find_part(module, parts.embed, "embed")
        block = find_part(module, parts.block, "block")
        self.layers = list(block) if isinstance(block, nn.ModuleList) else [block]
        self.head = find_part(module, parts.head, "head")
        self.readout_norm = _optional(module, parts.readout_norm, "readout_norm")
        self.loop_norm = _optional(module, parts.loop_norm, "loop_norm")
        self.shared = self.loop_norm is not None and self.loop_norm is self.readout_norm
        self.call = parts.call or (lambda layer, state, context: layer(state))
        self.context = parts.context or (lambda tokens, state: None)

    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        state = _first(self.embedding(tokens))
        return state, self.context(tokens, state)

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        if self.loop_norm is not None and self.shared and loop > 1:
            state = self.loop_norm(state)
        for layer in self.layers:
            state = _first(self.call(layer, state, context))
        if self.loop_norm is not None and not self.shared:
            state = self.loop_norm(state)
        return state

    def readout(self, state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
        if self.readout_norm is not None:
            state = self.readout_norm(state)
        if isinstance(self.head, nn.Embedding):
            return F.linear(state, self.head.weight)
        return _first(self.head(state))


def _first(result: Any) -> Tensor:
    """The state: the first element of a result (hidden, ...), or the result itself."""
    first: Tensor = result[0] if isinstance(result, tuple) else result
    return first


def _optional(module: nn.Module, path: str | None, role: str) -> nn.Module | None:
    return None if path is None else find_part(module, path, role)


def find_part(module: nn.Module, path: str, role: str) -> nn.Module:
    """The module at a dotted path inside `module`.

    Raises:
        InputError: the path does not exist; the message names the step that fails and what exists there.
    """
    here: Any = module
    done: list[str] = []
    for step in path.split("."):
        children = dict(here.named_children())
        if step not in children:
            raise InputError(_no_such_part(module, role, path, done, step, here, children))
        here = children[step]
        done.append(step)
    found: nn.Module = here
    return found


def _no_such_part(
    root: nn.Module, role: str, path: str, done: list[str], step: str, here: nn.Module, children: dict[str, nn.Module]
) -> str:
    place = f"its {'.'.join(done)!r} (a {type(here).__name__})" if done else "it"
    message = f"{role}={path!r}: no such part of {type(root).__name__}; {place} has no module {step!r}"
    if hasattr(here, step):
        message += f" ({step!r} is a {type(getattr(here, step)).__name__} there, not a module)"
    near = difflib.get_close_matches(step, children, n=3, cutoff=0.5)
    if near:
        message += f". Did you mean {' or '.join(repr('.'.join([*done, name])) for name in near)}?"
    return message + f" It has: {', '.join(children) or 'no modules'}"


def suggest(module: nn.Module) -> dict[str, list[str]]:
    """Paths that could be the parts of a looped model, by role: a guess from types and shapes, for an error message."""
    found: dict[str, list[str]] = {"embed": [], "block": [], "readout_norm": [], "head": []}
    widths = {m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)}
    inside_block: list[str] = []
    for path, part in module.named_modules():
        if any(path.startswith(f"{block}.") for block in inside_block):
            continue
        if isinstance(part, nn.Embedding):
            found["embed"].append(path)
        elif isinstance(part, nn.ModuleList) and len(part):
            found["block"].append(path)
            inside_block.append(path)
        elif isinstance(part, nn.Linear) and part.out_features in widths:
            found["head"].append(path)
        elif path and "norm" in type(part).__name__.lower():
            found["readout_norm"].append(path)
    return found
