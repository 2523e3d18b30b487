"""The numbers the papers published, as data with their sources."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, TypeVar

__all__ = [
    "SIZES",
    "by_size",
    "conditions",
    "entry",
    "exit_gap",
    "final_norm",
    "final_norm_std",
    "first_exit",
    "perplexity",
    "tables",
]

T = TypeVar("T")

SIZES = ("44m", "129m")
"""The paper's two controlled studies (Sharma & Vu 2026, section 3)."""
_TABLE_5 = {"per_loop/final_only": "final_only", "per_loop+penalty/rmsnorm": "penalty"}


def conditions() -> tuple[str, ...]:
    """The rows of Table 2, in its order."""
    return tuple(tables()["P1.T2_norm_and_ppl"]["44m"])


@cache
def tables() -> Mapping[str, Any]:
    """Every published table by name, such as 'P1.T2_norm_and_ppl'; 'source' and 'notes' say what they are."""
    text = files("loopverify.claims").joinpath("paper_tables.json").read_text(encoding="utf-8")
    return MappingProxyType(json.loads(text))


def entry(table: str, *path: str) -> float:
    """One number of a table, by the names that lead to it; the last may be one of the table's 'columns'.

    Raises:
        KeyError: the paper does not have it.
    """
    found = tables()[table]
    columns = found.get("columns", ())
    for name in path:
        found = found[columns.index(name)] if isinstance(found, list) else found[name]
    return float(found)


def by_size(number: Callable[[str], T]) -> Mapping[str, T]:
    """`number` of every size for which the paper has it."""
    found: dict[str, T] = {}
    for size in SIZES:
        try:
            found[size] = number(size)
        except KeyError:
            continue
    return MappingProxyType(found)


def final_norm(condition: str, size: str) -> float:
    """Mean tokenwise ||H_4||_2 over seeds (Table 2)."""
    return float(tables()["P1.T2_norm_and_ppl"][size][condition]["norm"][0])


def final_norm_std(condition: str, size: str) -> float | None:
    """Its standard deviation over seeds, where the paper prints one."""
    std = tables()["P1.T2_norm_and_ppl"][size][condition]["norm"][1]
    return None if std is None else float(std)


def perplexity(condition: str, size: str) -> float:
    """Validation perplexity at exit 4 (Table 2)."""
    return float(tables()["P1.T2_norm_and_ppl"][size][condition]["ppl"])


def first_exit(condition: str, size: str) -> float:
    """Perplexity at exit 1 (Table 11)."""
    return float(tables()["P1.T11_decomposition"][size][condition][0])


def exit_gap(condition: str, size: str) -> float:
    """CE(1) - CE(4) in nats a token: Table 11, and by the perplexities of Table 5 for the rows that it adds."""
    if condition in _TABLE_5:
        row = tables()["P1.T5_variable_depth_ppl"][_TABLE_5[condition]][size]
        return math.log(row["K1"] / row["K4"])
    return float(tables()["P1.T11_decomposition"][size][condition][2])
