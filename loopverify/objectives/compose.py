"""Objectives put together by name: 'terminal', 'per_loop+penalty', 'exit_weighted+latent', ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from loopverify.errors import InputError, unknown
from loopverify.looped import Trace
from loopverify.objectives.chunked import check_chunk_tokens
from loopverify.objectives.terms import exit_entropy, exit_weighted, latent_distance, norm_penalty, per_loop, terminal

__all__ = ["ADDITIONS", "GATED", "LOSSES", "Objective", "Term", "Terms", "named"]

Term = Callable[[Trace, Tensor], Tensor]


class Placement(Protocol):
    """A cross-entropy term in its two forms."""

    def __call__(self, trace: Trace, targets: Tensor, *, chunk_tokens: int | None = None) -> Tensor: ...


LOSSES: Mapping[str, Placement] = MappingProxyType(
    {"per_loop": per_loop, "terminal": terminal, "exit_weighted": exit_weighted}
)
"""The cross-entropy placements with which a name may begin."""
GATED = frozenset({"exit_weighted"})
"""Placements that require a model with exit probabilities and reward their entropy."""
ADDITIONS: Mapping[str, Term] = MappingProxyType({"penalty": norm_penalty, "latent": latent_distance})
"""Terms that a name may add with '+', each weighted by the argument of the same name."""


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

    @property
    def gated(self) -> bool:
        """Whether it requires a model with exit probabilities."""
        return not GATED.isdisjoint(self.terms)


def named(
    name: str,
    *,
    penalty: float = 0.01,
    latent: float = 0.01,
    exit_entropy: float = 0.1,
    chunk_tokens: int | None = None,
) -> Objective:
    """The objective called `name`: a placement from `LOSSES`, then any of '+penalty' and '+latent'.

    Args:
        penalty: weight of the norm penalty; the paper's lambda = 0.01 (Sharma & Vu 2026, section 3).
        latent: weight of the latent loss; by default that of the penalty, which it equals where targets embed to zero.
        exit_entropy: weight of the entropy that 'exit_weighted' rewards, beta; 0.1 as in Ouro's first stage
            (arXiv:2510.25741; 0.05 in the later ones), 0 for none. The term is -beta times the entropy.
        chunk_tokens: how many tokens' logits are held at once; None: those of all tokens and exits. Values and
            gradients agree to rounding, for one backward pass; see `weighted_exits`. 256 suffices on a CPU.

    Raises:
        InputError: an unknown placement, an unknown or repeated addition, a weight that is used and out of
            range, or chunk_tokens below 1.
    """
    placement, *additions = name.split("+")
    if placement not in LOSSES:
        raise unknown("loss", placement, LOSSES)
    check_chunk_tokens(chunk_tokens)
    terms: dict[str, Term] = {placement: partial(LOSSES[placement], chunk_tokens=chunk_tokens)}
    if placement in GATED:
        terms |= _entropy_reward(exit_entropy)
    weights = {"penalty": penalty, "latent": latent}
    for addition in additions:
        if addition not in ADDITIONS:
            raise unknown("addition to the loss", addition, ADDITIONS)
        if addition in terms:
            raise InputError(f"loss {name!r} adds {addition!r} twice; name it once and set its weight, {addition}=...")
        weight = weights[addition]
        if not 0 < weight < math.inf:
            raise InputError(f"{addition} is {weight!r}; expected a finite weight > 0 (or omit '+{addition}')")
        terms[addition] = partial(_weighted, term=ADDITIONS[addition], weight=weight)
    return Objective(name, MappingProxyType(terms))


def _entropy_reward(beta: float) -> dict[str, Term]:
    if not 0 <= beta < math.inf:
        raise InputError(f"exit_entropy is {beta!r}; expected a finite weight >= 0 (0 rewards no entropy)")
    return {"exit_entropy": partial(_weighted, term=exit_entropy, weight=-beta)} if beta > 0 else {}


def _weighted(trace: Trace, targets: Tensor, *, term: Term, weight: float) -> Tensor:
    return weight * term(trace, targets)
