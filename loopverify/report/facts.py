"""The facts that all runs share, and those in which they differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from loopverify.claims import Run
from loopverify.claims.quantity import number

__all__ = ["shared_facts"]

_MOST_SHOWN = 3


def shared_facts(runs: Sequence[Run]) -> dict[str, str]:
    """Every fact of the runs once: its value if all agree, otherwise the number of runs per value."""
    names = dict.fromkeys(name for run in runs for name in run.facts)
    return {name: _summary([run.facts.get(name, "unknown") for run in runs]) for name in names}


def _summary(values: Sequence[str]) -> str:
    counts = Counter(values)
    if len(counts) == 1:
        return values[0]
    if len(counts) <= _MOST_SHOWN:
        return ", ".join(f"{value} ({count} of {len(values)} runs)" for value, count in counts.most_common())
    numbers = [_number(value) for value in values]
    if all(math.isfinite(value) for value in numbers):
        return f"{number(min(numbers))} … {number(max(numbers))}"
    return f"{len(counts)} values in {len(values)} runs"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
