"""What an adapter is: a name, the parts by which a module is recognized, and a builder of its `Looped` view."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from loopverify.looped import Looped

__all__ = ["Architecture", "Options", "overridden"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a caller of `adapt` may choose for any recognized architecture."""

    trained_loops: int | None = None
    """r0; read from the module's own configuration when None."""
    name: str | None = None
    state_seed: int | None = 0
    """Seed of a random initial state, for the architectures that have one; None leaves it random."""

    def loops(self, own: int) -> int:
        """r0: the caller's, or else the module's `own`."""
        return own if self.trained_loops is None else self.trained_loops


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A family of looped models that share a structure."""

    name: str
    parts: tuple[str, ...]
    """Dotted attribute paths which together identify the structure; their values are not inspected."""
    build: Callable[[nn.Module, Options], Looped]

    def missing(self, module: nn.Module) -> list[str]:
        """Those of `parts` that `module` lacks; empty when it has this architecture."""
        return [part for part in self.parts if not _has(module, part)]


def _has(module: object, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return True


@contextlib.contextmanager
def overridden(*owners: Any, **values: object) -> Iterator[None]:
    """Set these attributes on every owner that has them; restore them afterwards, also on error.

    Several looped models read their loop count from more than one place: from the configuration at each forward, or
    from a copy that the module took when it was built.
    """
    before = [(owner, name, getattr(owner, name)) for owner in owners for name in values if hasattr(owner, name)]
    try:
        for owner, name, _ in before:
            setattr(owner, name, values[name])
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
