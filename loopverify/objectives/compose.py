"""Objectives put together by name: 'terminal', 'per_loop', 'per_loop+penalty', ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from loopverify.errors import InputError, unknown
from loopverify.looped import Trace
from loopverify.objectives.terms import norm_penalty, per_loop, terminal

__all__ = ["LOSSES", "Objective", "Term", "Terms", "named"]

Term = Callable[[Trace, Tensor], Tensor]

LOSSES: Mapping[str, Term] = MappingProxyType({"terminal": terminal, "per_loop": per_loop})
"""The cross-entropy placements that a name may begin with."""


@dataclass(frozen=True, eq=False)
class Terms:
    """The named parts of a loss, each a weighted differentiable scalar."""

    parts: Mapping[str, Tensor]

    @property
    def total(self) -> Tensor:
        """The loss: the sum of the parts."""
        return torch.stack(list(self.parts.values())).sum()


@dataclass(frozen=True)
class Objective:
    """A sum of named terms over one trace."""

    name: str
    terms: Mapping[str, Term]

    def __call__(self, trace: Trace, targets: Tensor) -> Terms:
        return Terms({name: term(trace, targets) for name, term in self.terms.items()})


def named(name: str, *, penalty: float = 0.01) -> Objective:
    """The objective called `name`: a placement from `LOSSES`, optionally '+penalty' with weight `penalty`.

    The penalty's default weight is the paper's lambda = 0.01 (Sharma & Vu 2026, section 3).
    """
    placement, *additions = name.split("+")
    if placement not in LOSSES:
        raise unknown("loss", placement, LOSSES)
    terms: dict[str, Term] = {placement: LOSSES[placement]}
    for addition in additions:
        if addition != "penalty":
            raise unknown("addition to the loss", addition, ["penalty"])
        if not penalty > 0:
            raise InputError(f"penalty is {penalty!r}; expected a weight > 0 (or leave out '+penalty')")
        terms["penalty"] = partial(_weighted_penalty, weight=penalty)
    return Objective(name, MappingProxyType(terms))


def _weighted_penalty(trace: Trace, targets: Tensor, *, weight: float) -> Tensor:
    return weight * norm_penalty(trace)
