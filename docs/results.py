"""Results of studies, which take too long for a test: stored next to the pages, copied from a report by the command.

`docs/results/<preset>.json` holds the part of one study's report that the tables need, with its provenance. Limits of
claims and published numbers are never read from there, but from `loopverify.claims`. A result that was judged against
a limit other than that of the registry raises InputError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loopverify.claims import CLAIMS, Claim, Evidence, Measured
from loopverify.errors import InputError, unknown
from loopverify.plain import plain_dict
from loopverify.report.measured_rows import Spread

__all__ = ["COMMANDS", "Results", "from_report", "read_json"]

COMMANDS: Mapping[str, str] = {
    "tiny": "pytest train --preset tiny --seeds {seeds}",
    "hops": "pytest train -k hops --preset tiny --seeds {seeds}",
}
"""The studies that the pages show: preset -> the command that runs it."""
METRICS: Mapping[str, tuple[str, ...]] = {
    "tiny": ("norm@4", "ppl@1", "ppl@4"),
    "hops": (
        *(f"ce@{k}" for k in range(1, 5)),
        *("ce@1-ce@4", "norm@1", "norm@4", "step_matched"),
        *(f"accuracy_{steps}@{k}" for steps in range(1, 5) for k in (1, 4)),
    ),
}
"""The metrics stored for each condition, by preset; see `loopverify.claims.Run.metrics`."""
_FACTS = ("loopverify", "torch", "python", "device", "dtype", "threads", "text")
_NOT_RUN = "not run"


@dataclass(frozen=True)
class Results:
    """The results of one study."""

    data: Mapping[str, Any]

    @classmethod
    def read(cls, root: Path, preset: str) -> Results:
        """The stored results of a preset.

        Raises:
            InputError: there are none, or they are not a JSON object.
        """
        return cls(read_json(stored(root, preset)))

    @property
    def preset(self) -> str:
        """The preset of all its runs."""
        return str(self.data["preset"])

    @property
    def runs(self) -> int:
        """The number of trained models."""
        return sum(of["n"] for of in self.data["conditions"].values())

    def seeds(self, condition: str, metric: str) -> list[float] | None:
        """The metric of every run, in the order of seeds; None if only the mean is known."""
        seeds = self._metric(condition, metric)["seeds"]
        return None if seeds is None else [float(value) for value in seeds]

    def mean(self, condition: str, metric: str) -> float:
        """The mean over seeds; NaN if it was not measured."""
        return float(self._metric(condition, metric)["mean"])

    def std(self, condition: str, metric: str) -> float | None:
        """The sample standard deviation over seeds; None for fewer than two."""
        std = self._metric(condition, metric)["std"]
        return None if std is None else float(std)

    def evidence(self, claim: Claim) -> Evidence:
        """The evidence of the study on a claim; 'not run' if there is none.

        Raises:
            InputError: the claim was judged against another limit.
        """
        found = self.data["claims"].get(claim.id)
        if found is None:
            found = {"verdict": _NOT_RUN, "basis": "no result is stored", "measured": None, "n": []}
        elif [found["relation"], found["limit"]] != [claim.form.relation, claim.form.limit]:
            raise InputError(
                f"{claim.id} was judged against {found['relation']} {found['limit']:g}, but requires "
                f"{claim.form.relation} {claim.form.limit:g}; run the study again and copy its report with --results"
            )
        counts = found["n"] or [0] * len(claim.conditions)
        seeds = {name: tuple(range(n)) for name, n in zip(claim.conditions, counts, strict=True)}
        return replace(
            Evidence.of(claim, seeds, found["verdict"], found["basis"]),
            measured=None if found["measured"] is None else Measured(**found["measured"]),
            p_for=found.get("p_for"),
            p_against=found.get("p_against"),
        )

    def _metric(self, condition: str, metric: str) -> Mapping[str, Any]:
        nothing = {"mean": math.nan, "std": None, "seeds": None}
        found: Mapping[str, Any] = (
            self.data["conditions"].get(condition, {"metrics": {}})["metrics"].get(metric, nothing)
        )
        return found


def stored(root: Path, preset: str) -> Path:
    """The file of the results of a preset."""
    return root / "docs" / "results" / f"{preset}.json"


def read_json(file: Path) -> Mapping[str, Any]:
    """A JSON object.

    Raises:
        InputError: the file cannot be read, or does not hold a JSON object.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{file} holds a JSON {type(found).__name__}; expected an object")
    return found


def from_report(
    report: Mapping[str, Any], earlier: Mapping[str, Any] | None, made: Mapping[str, str]
) -> dict[str, Any]:
    """The results to store, from a report (`loopverify.report.Report.to_json`).

    Args:
        earlier: the results that these replace.
        made: provenance in addition to the command and the facts of the runs: commit and date.

    Raises:
        InputError: the report has another format or an unknown preset, or lacks claims that `earlier` judged.
    """
    if missing := {"preset", "evidence", "rows", "facts"} - report.keys():
        raise InputError(f"the report has no {', '.join(sorted(missing))}; expected the report.json of `pytest train`")
    preset = report["preset"]
    if preset not in COMMANDS:
        raise unknown("preset of the report", preset, COMMANDS)
    claims = {of["claim"]: _judged(of) for of in report["evidence"]}
    lost = [name for name in (earlier or {}).get("claims", {}) if name in CLAIMS and name not in claims]
    if lost:
        raise InputError(
            f"the report does not judge {len(lost)} claims whose results it would replace, {lost[0]} among them; "
            f"expected one of the whole study: {COMMANDS[preset].format(seeds=3)}"
        )
    seeds = max((len(row["seeds"]) for row in report["rows"]), default=0)
    facts = {name: report["facts"][name] for name in _FACTS if name in report["facts"]}
    return {
        "provenance": {"command": COMMANDS[preset].format(seeds=seeds), "seeds": seeds, **made, **facts},
        "preset": preset,
        "conditions": {row["condition"]: _condition(row, METRICS[preset]) for row in report["rows"]},
        "claims": claims,
    }


def _judged(evidence: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("relation", "limit", "measured", "p_for", "p_against", "verdict", "basis")
    return {name: evidence[name] for name in kept} | {"n": [len(of) for of in evidence["seeds"].values()]}


def _condition(row: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The metrics of a row that all seeds have."""
    measured = {name: [float(value) for value in values] for name, values in row["metrics"].items()}
    found = {name: _over_seeds(name, measured) for name in names if set(name.split("-")) <= measured.keys()}
    return {"n": len(row["seeds"]), "metrics": found}


def _over_seeds(name: str, measured: Mapping[str, list[float]]) -> dict[str, Any]:
    """Mean and sample standard deviation of the finite values of a metric or of a difference of two, and all values."""
    first, _, second = name.partition("-")
    values = [a - b for a, b in zip(measured[first], measured[second], strict=True)] if second else measured[first]
    spread = Spread.of(values) or Spread(mean=math.nan, std=None)
    return plain_dict({"mean": spread.mean, "std": spread.std, "seeds": values})
