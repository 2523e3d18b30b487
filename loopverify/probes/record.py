"""`Audit`, what `loopverify.audit` returns: findings, advice, and their two views, text and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass

from loopverify.probes.advice import advise
from loopverify.probes.findings import Findings
from loopverify.probes.table import render

__all__ = ["Audit"]


@dataclass(frozen=True, kw_only=True)
class Audit(Findings):
    """What a looped model carries from loop to loop, what its objective sees of it, and what follows."""

    @property
    def advice(self) -> tuple[str, ...]:
        """What would fix it, in the paper's terms."""
        return advise(self)

    def to_dict(self) -> dict[str, object]:
        """Everything as dicts, lists, strings, finite numbers, booleans and None; other numbers as 'inf' or 'nan'."""
        conclusions = {"verdict": self.verdict, "blind": self.blind, "advice": self.advice}
        plain = _plain({**conclusions, **{field.name: getattr(self, field.name) for field in fields(self)}})
        assert isinstance(plain, dict)
        return plain

    def __str__(self) -> str:
        """One screen of 100 columns."""
        return render(self, self.advice)


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in _shown(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    return value


def _shown(record: object) -> list[str]:
    """The fields and the properties of a record: both are facts."""
    properties = [name for name, entry in vars(type(record)).items() if isinstance(entry, property)]
    return [field.name for field in fields(record)] + properties  # type: ignore[arg-type]
