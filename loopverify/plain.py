"""Records converted to JSON values, for every `to_dict` of the package."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

__all__ = ["plain", "plain_dict"]


def plain(value: object) -> object:
    """`value` as dicts, lists, strings, finite numbers, booleans and None.

    JSON has no infinities and no NaN: they become the strings 'inf', '-inf' and 'nan', which `float` accepts. A
    dataclass becomes a dict of its fields and its properties.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _facts(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def plain_dict(values: Mapping[str, object]) -> dict[str, object]:
    """`plain` applied to each value of a mapping."""
    return {key: plain(value) for key, value in values.items()}


def _facts(record: object) -> list[str]:
    properties = [name for name, entry in vars(type(record)).items() if isinstance(entry, property)]
    return [field.name for field in fields(record)] + properties  # type: ignore[arg-type]
