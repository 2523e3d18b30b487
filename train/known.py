"""Claims that are known not to hold at a preset, with the numbers: what `pytest train` reports as expected failures.

A claim belongs here once a study of the preset, as it is, has shown it. Everything else must hold; and one that is
listed and holds after all fails, so that the list stays true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

__all__ = ["KNOWN", "Known"]


@dataclass(frozen=True, kw_only=True)
class Known:
    """How a claim fell short."""

    verdict: Literal["contradicted", "inconclusive"]
    why: str
    """The numbers, and the reason where there is one."""
    seeds: int
    """Of the study that showed it. Fewer can show a claim by chance, and then say nothing against this entry."""


KNOWN: Mapping[str, Mapping[str, Known]] = MappingProxyType(
    {
        "tiny": {
            "P1.T2.exits.fail.terminal.rmsnorm": Known(
                verdict="contradicted",
                why="exit 1 is 0.197 nats (0.189 to 0.240) worse than exit 4, short of 0.3: at 2 layers the first exit "
                "is usable untrained. It is still 0.237 nats worse than under per-loop loss",
                seeds=3,
            ),
        },
    }
)
"""By preset and by the claim's id; of other presets nothing is known."""
