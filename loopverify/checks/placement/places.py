"""The records of `norm_placement`: the place of each norm, and what happens to the scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from loopverify.auditing.exit_sweep import Visibility
from loopverify.theory.recurrence import CarryKind

__all__ = ["NormPlace", "Place", "Placement"]

Place = Literal["inside", "boundary", "readout", "both", "outside"]
"""inside: within the block (or layers of the readout), where part of the state bypasses it. boundary: in the loop, and
the whole state passes through it. readout: between the state and every logit. both: boundary and readout. outside: not
called by loops or exits."""


@dataclass(frozen=True, kw_only=True)
class NormPlace:
    """One norm module and its place, determined in two ways."""

    name: str
    kind: str
    """The name of its class."""
    calls_in_embed: int
    calls_per_loop: tuple[int, ...]
    """Calls in each loop 1..K of the longer run."""
    calls_per_exit: tuple[int, ...]
    """Calls in each exit 1..K of the longer run."""
    totals: tuple[int, int]
    """Calls in a whole forward of the shorter and of the longer run, each reading only its last exit."""
    by_calls: Place
    """The place by counts. A norm called only by the step is at the boundary if its result is the state that the step
    returns."""
    by_function: Place
    """The place by replay, at the last loop and exit of the longer run. If the two differ, this one is right."""
    why: str
    """Whether the two agree, and if not, why."""

    @property
    def agree(self) -> bool:
        """Whether both ways give the same place."""
        return self.by_calls == self.by_function


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a looped model normalizes, and what its loops and exits do with the scale."""

    model: str
    loops: tuple[int, int]
    """The two loop counts at which calls were counted."""
    norms: tuple[NormPlace, ...]
    """In the order of their first call."""
    carry: tuple[CarryKind, ...]
    """What each loop of the longer run does to the scale."""
    visibility: tuple[Visibility, ...]
    """Whether each exit of the longer run shows the scale."""
    notes: tuple[str, ...]
    """Where modules and function disagree, and what could not be measured."""

    def at(self, *places: Place) -> list[str]:
        """Names of the norms at these places, by function."""
        return [norm.name for norm in self.norms if norm.by_function in places]

    @property
    def disagreements(self) -> tuple[NormPlace, ...]:
        """The norms that the counts alone would misplace."""
        return tuple(norm for norm in self.norms if not norm.agree)

    def to_dict(self) -> dict[str, object]:
        """Everything as dicts, lists, strings and integers."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(placement: Placement) -> Iterator[str]:
    shorter, longer = placement.loops
    yield f"norm placement of {placement.model}, counted at {shorter} and {longer} loops"
    yield f"  scale is {_spans(placement.carry, 'by loop')}; {_spans(placement.visibility, 'at exit')}"
    shown = [norm for norm in placement.norms if norm.by_function in ("boundary", "readout", "both")]
    width = max((len(norm.name) for norm in shown), default=0)
    if shown:
        yield f"  {'norm':<{width}}  calls: embed, per loop, per exit  by calls  by function"
    for norm in shown:
        counts = f"{norm.calls_in_embed}, {_counts(norm.calls_per_loop)}, {_counts(norm.calls_per_exit)}"
        yield f"  {norm.name:<{width}}  {counts:<32}  {norm.by_calls:<8}  {norm.by_function}"
    yield f"  inside, on branches: {_names(placement.at('inside'))}; outside: {_names(placement.at('outside'))}"
    for why in dict.fromkeys(norm.why for norm in placement.disagreements):
        alike = [norm for norm in placement.disagreements if norm.why == why]
        yield f"  → {_names([norm.name for norm in alike])}: {alike[0].by_calls} by calls; {why}"
    for note in placement.notes:
        yield f"  → {note}"


def _names(names: Sequence[str]) -> str:
    if len(names) < 3:
        return " and ".join(names) or "none"
    return f"{names[0]} and {len(names) - 1} more"


def _counts(calls: tuple[int, ...]) -> str:
    return str(calls[0]) if len(set(calls)) == 1 else "/".join(map(str, calls))


def _spans(kinds: tuple[str, ...], unit: str) -> str:
    """('carried', 'removed', 'removed') -> 'carried by loop 1, removed by loop 2-3'."""
    parts, start = [], 1
    for index, kind in enumerate(kinds, start=1):
        if index == len(kinds) or kinds[index] != kind:
            parts.append(f"{kind} {unit} {start}" + (f"-{index}" if index > start else ""))
            start = index + 1
    return ", ".join(parts)
