"""The numbers published in the first paper (Sharma & Vu 2026), read from `published.json`, the only copy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from loopverify.claims.template import Condition

__all__ = ["column", "difference", "entry", "exit_gap", "log_ratio", "ratio", "row", "rows", "tables"]


@cache
def tables() -> Mapping[str, Any]:
    """Every published table by name, such as 'T2'; 'source' and 'notes' describe them."""
    text = files("loopverify.claims.p1").joinpath("published.json").read_text(encoding="utf-8")
    return MappingProxyType(json.loads(text))


def rows(table: str, size: str) -> Mapping[str, Mapping[str, Any]]:
    """The rows of a table for one model size, in the paper's order: columns by name, as printed ('>27.6' too).

    Raises:
        KeyError: the paper does not print it.
    """
    found: Mapping[str, Mapping[str, Any]] = tables()[table][size]
    return found


def row(table: str, size: str, of: Condition | str) -> Mapping[str, Any]:
    """One row of a table, of a condition (by its name in that table) or by its printed name.

    Raises:
        KeyError: the paper does not print it.
    """
    printed = rows(table, size)
    names = (of,) if isinstance(of, str) else (of.name, *of.rows)
    for name in names:
        if name in printed:
            return printed[name]
    raise KeyError(f"{table} of {size} has none of the rows {names}")


def entry(table: str, size: str, of: Condition | str, column: str) -> float:
    """One number of a table; for one printed as '>27.6' it is 27.6, the smallest possible value.

    Raises:
        KeyError: the paper does not print it.
    """
    printed = row(table, size, of)[column]
    if printed is None:
        raise KeyError(f"{table} of {size} prints no {column} of {of}")
    return float(printed.removeprefix(">") if isinstance(printed, str) else printed)


def column(table: str, name: str) -> Callable[[str, Condition], float]:
    """One column of a table, as a function of model size and condition."""
    return lambda size, of: entry(table, size, of, name)


def ratio(table: str, name: str) -> Callable[[str, Condition, Condition], float]:
    """The ratio of two conditions in one column, as a function of model size, left and right."""
    return lambda size, left, right: entry(table, size, left, name) / entry(table, size, right, name)


def difference(table: str, name: str) -> Callable[[str, Condition, Condition], float]:
    """The difference of two conditions in one column, as a function of model size, left and right."""
    return lambda size, left, right: entry(table, size, left, name) - entry(table, size, right, name)


def log_ratio(table: str, name: str) -> Callable[[str, Condition, Condition], float]:
    """The difference in CE (nats per token) of two conditions, from a column of perplexities."""
    return lambda size, left, right: math.log(ratio(table, name)(size, left, right))


def exit_gap(size: str, condition: Condition) -> float:
    """CE(1) − CE(4) in nats per token: from Table 11, or from the perplexities of Table 5 for the rows it adds."""
    if condition.name in rows("T11", size):
        return entry("T11", size, condition, "ce_gap")
    return math.log(entry("T5", size, condition, "K1") / entry("T5", size, condition, "K4"))
