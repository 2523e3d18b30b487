"""Run: the results of one training run that claims read, as a record that JSON preserves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Self

from loopverify.errors import InputError
from loopverify.plain import plain_dict

__all__ = ["Run", "one_study"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """The held-out metrics of one trained model."""

    preset: str
    """The study: everything that its runs share except condition and seed."""
    condition: str
    """Loss and readout, as in Table 2: 'per_loop/rmsnorm', 'per_loop+penalty/rmsnorm', 'terminal/raw', ..."""
    seed: int
    metrics: Mapping[str, float]
    """By name, as in `claims.metrics`: 'norm@4', 'ce@1', ...; further metrics of older runs are kept."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Further facts of the run: dtype, device, versions, threads, text, tokens, steps, ..."""
    key: str = ""
    """Where the run is stored."""

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise InputError(f"seed is {self.seed!r}; expected an integer")
        try:
            metrics = {str(name): float(value) for name, value in self.metrics.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"metrics are {self.metrics!r}; expected numbers by name ({error})") from error
        object.__setattr__(self, "metrics", MappingProxyType(metrics))
        object.__setattr__(self, "facts", MappingProxyType({str(k): str(v) for k, v in self.facts.items()}))

    @property
    def label(self) -> str:
        """Human-readable: 'per_loop/rmsnorm seed 2'."""
        return f"{self.condition} seed {self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values; infinities and NaN become 'nan', 'inf' and '-inf'."""
        return plain_dict({f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """The run that `to_dict` describes.

        Raises:
            InputError: a field is missing, unknown or of the wrong type.
        """
        known = {f.name for f in fields(cls)}
        missing = {"preset", "condition", "seed", "metrics"} - record.keys()
        if missing or record.keys() - known:
            raise InputError(
                f"a run has the fields {sorted(record)}; missing {sorted(missing)}, "
                f"unknown {sorted(record.keys() - known)}. Was it written by another version?"
            )
        return cls(**record)

    def to_json(self) -> str:
        """The record as one JSON object."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The run that `to_json` wrote.

        Raises:
            InputError: the text is not the JSON object of a run.
        """
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"a run is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise InputError(f"a run is a JSON {type(record).__name__}; expected an object")
        return cls.from_dict(record)


def one_study(runs: Iterable[Run]) -> tuple[Run, ...]:
    """`runs` sorted by condition and seed, after checking that they may be compared.

    Raises:
        InputError: the runs have several presets, or two of them have the same condition and seed, and so are not
            independent.
    """
    ordered = tuple(sorted(runs, key=lambda run: (run.condition, run.seed)))
    presets = sorted({run.preset for run in ordered})
    if len(presets) > 1:
        raise InputError(f"runs of the presets {', '.join(presets)}; expected one preset, since others differ in size")
    for one, other in pairwise(ordered):
        if one.label == other.label:
            raise InputError(
                f"two runs of {one.label} (keys {one.key!r} and {other.key!r}); a seed counts once: pass one of them"
            )
    return ordered
