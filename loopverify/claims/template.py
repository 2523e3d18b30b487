"""Claims that share one wording: a template with gaps, filled in for each condition or pair of conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeVar

from loopverify.claims.claim import Bound, Claim, Comparison

__all__ = ["Condition", "by_size", "claims"]

T = TypeVar("T")
Kind = Literal["at least", "at most", "ratio", "difference"]

SIZES = ("44m", "129m", "1.4b")
"""The model sizes for which the first paper prints numbers: its two controlled studies (section 3) and its large models
(appendix 11)."""


@dataclass(frozen=True)
class Condition:
    """One condition of a study. In a template, `{0}` is its description, `{0.short}` and `{0.slug}` are for ids."""

    name: str
    """Loss, readout and, unless it is residual, recurrence: 'per_loop/rmsnorm', as its runs are named."""
    short: str
    """In ids of claims, where the loss is known: 'rmsnorm', 'penalty'."""
    words: str
    """In sentences of claims."""
    rows: tuple[str, ...] = ()
    """Names of its row in those of the paper's tables that do not print `name`."""

    def __str__(self) -> str:
        return self.words

    @property
    def loss(self) -> str:
        """The placement of the loss: 'per_loop', also for 'per_loop+penalty/rmsnorm'."""
        return self.name.split("/")[0].split("+")[0]

    @property
    def slug(self) -> str:
        """In ids of claims: 'per_loop.penalty'."""
        return f"{self.loss}.{self.short}"


def claims(
    name: str,
    clause: str,
    *of: Condition | tuple[Condition, Condition],
    form: tuple[Kind, float],
    metric: str,
    source: str,
    published: Callable[..., float] | None = None,
    needs: str = "",
) -> tuple[Claim, ...]:
    """One claim for each of `of`: a condition if the claim is a bound, a pair (left, right) if it is a comparison.

    Args:
        name: the id, with gaps `{0...}` for the condition and `{1...}` for the right side of a comparison.
        clause: the sentence without its capital and full stop, with the same gaps, and `{limit...}` for the limit.
        form: the side of the bound or the effect of the comparison, and the limit.
        published: the paper's effect, called as published(size, condition) or published(size, left, right); it raises
            KeyError for a model size that the paper does not have.
    """

    def claim(*of: Condition) -> Claim:
        return Claim(
            id=name.format(*of),
            sentence=_sentence(clause.format(*of, limit=form[1])),
            source=source,
            metric=metric,
            form=_form(of, *form),
            published=by_size(lambda size: published(size, *of)) if published else {},
            needs=needs,
        )

    return tuple(claim(*one) if isinstance(one, tuple) else claim(one) for one in of)


def _form(of: tuple[Condition, ...], kind: Kind, limit: float) -> Bound | Comparison:
    if kind == "at least" or kind == "at most":
        (only,) = of
        return Bound(condition=only.name, side=kind, limit=limit)
    left, right = of
    return Comparison(left=left.name, right=right.name, by=kind, limit=limit)


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."


def by_size(number: Callable[[str], T]) -> Mapping[str, T]:
    """`number` for each model size for which the paper has it; where it does not, `number` raises KeyError."""
    found: dict[str, T] = {}
    for size in SIZES:
        try:
            found[size] = number(size)
        except KeyError:
            continue
    return MappingProxyType(found)
