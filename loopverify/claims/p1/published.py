"""The numbers that the first paper published (Sharma & Vu 2026), read from `published.json`, their only place."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, TypeVar

from loopverify.claims.p1.conditions import Condition

__all__ = ["SIZES", "by_size", "entry", "exit_gap", "row", "rows", "tables"]

T = TypeVar("T")

SIZES = ("44m", "129m", "1.4b")
"""The paper's two controlled studies (section 3), and its large models (appendix 11)."""


@cache
def tables() -> Mapping[str, Any]:
    """Every published table by name, such as 'T2'; 'source' and 'notes' say what they are."""
    text = files("loopverify.claims.p1").joinpath("published.json").read_text(encoding="utf-8")
    return MappingProxyType(json.loads(text))


def rows(table: str, size: str) -> Mapping[str, Mapping[str, Any]]:
    """The rows of a table for one model size, in the paper's order: columns by name, as printed ('>27.6' too).

    Raises:
        KeyError: the paper does not have it.
    """
    found: Mapping[str, Mapping[str, Any]] = tables()[table][size]
    return found


def row(table: str, size: str, of: Condition | str) -> Mapping[str, Any]:
    """One row of a table: that of a condition, by the name that it has there, or one that is no condition.

    Raises:
        KeyError: the paper does not have it.
    """
    printed = rows(table, size)
    names = (of,) if isinstance(of, str) else (of.name, *of.rows)
    for name in names:
        if name in printed:
            return printed[name]
    raise KeyError(f"{table} of {size} has none of the rows {names}")


def entry(table: str, size: str, of: Condition | str, column: str) -> float:
    """One number of a table. Of one printed as '>27.6' this is 27.6, the least that it can be.

    Raises:
        KeyError: the paper does not have it.
    """
    printed = row(table, size, of)[column]
    if printed is None:
        raise KeyError(f"{table} of {size} prints no {column} of {of}")
    return float(printed.removeprefix(">") if isinstance(printed, str) else printed)


def by_size(number: Callable[[str], T]) -> Mapping[str, T]:
    """`number` of every model size for which the paper has it."""
    found: dict[str, T] = {}
    for size in SIZES:
        try:
            found[size] = number(size)
        except KeyError:
            continue
    return MappingProxyType(found)


def exit_gap(condition: Condition, size: str) -> float:
    """CE(1) − CE(4) in nats per token: from Table 11, or from the perplexities of Table 5 for the rows it adds."""
    if condition.name in rows("T11", size):
        return entry("T11", size, condition, "ce_gap")
    return math.log(entry("T5", size, condition, "K1") / entry("T5", size, condition, "K4"))
