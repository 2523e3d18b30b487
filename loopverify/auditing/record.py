"""`Audit`, what `loopverify.audit` returns: findings, advice, and their two views, text and JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields

from loopverify.auditing.advice import advise
from loopverify.auditing.findings import Findings
from loopverify.auditing.text import render
from loopverify.plain import plain_dict

__all__ = ["Audit"]


@dataclass(frozen=True, kw_only=True)
class Audit(Findings):
    """What a looped model carries from loop to loop, what its objective sees of it, and what follows."""

    @property
    def advice(self) -> tuple[str, ...]:
        """What would fix what was found, in the paper's terms."""
        return advise(self)

    def to_dict(self) -> dict[str, object]:
        """All fields as JSON values (see `loopverify.plain`); infinities and NaN are strings."""
        conclusions = {"verdict": self.verdict, "blind": self.blind, "advice": self.advice}
        return plain_dict({**conclusions, **{field.name: getattr(self, field.name) for field in fields(self)}})

    def __str__(self) -> str:
        """The audit as text on one screen of 100 columns."""
        return render(self, self.advice)
