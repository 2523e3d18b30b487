"""What a run of the benchmarks measured, read from the JSON of pytest-benchmark, and the table made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Measured", "measured", "merged", "table"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One ratio: what was measured, at which shape, over what."""

    label: str
    shape: str
    peer: str
    median: float
    low: float
    high: float
    at_most: float | None

    @property
    def held(self) -> bool | None:
        """Whether the median reaches the goal; None without one."""
        return None if self.at_most is None else self.median <= self.at_most


def measured(json_file: Path) -> tuple[list[Measured], dict[str, Any]]:
    """The ratios of a run in its order, and the machine it ran on.

    Benchmarks that note no ratios in their `extra_info` are passed over.
    """
    data = json.loads(json_file.read_text(encoding="utf-8"))
    rows = [
        Measured(label=of["extra_info"]["label"], shape=of["extra_info"]["shape"], **ratio)
        for of in data["benchmarks"]
        for ratio in of["extra_info"].get("ratios", ())
    ]
    return rows, data["machine_info"] | {"when": data["datetime"][:10]}


def merged(fresh: Path, earlier: Path | None) -> str:
    """The JSON of a run of pytest-benchmark, with what only an earlier one measured, in the order of that.

    The machine and the date are those of the fresh one.
    """
    data = json.loads(fresh.read_text(encoding="utf-8"))
    if earlier is not None and earlier.exists():
        by_name = {of["fullname"]: of for of in json.loads(earlier.read_text(encoding="utf-8"))["benchmarks"]}
        data["benchmarks"] = list((by_name | {of["fullname"]: of for of in data["benchmarks"]}).values())
    return json.dumps(data, indent=4)


def table(rows: Iterable[Measured], machine: dict[str, Any]) -> str:
    """Markdown: a paragraph about the machine, then a line for each ratio."""
    cpu = machine["cpu"]
    lines = [
        f"{cpu.get('brand_raw', 'unknown CPU')}, {cpu.get('count', '?')} cores, one thread used; "
        f"torch {machine['torch']}, {machine['device']}, {machine['when']};\n"
        f"load of the machine during the measurement: {machine['load']}.",
        "",
        "| what | at | over | median | rounds from – to | goal |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        span = "" if row.low == row.high else f"{row.low:.3g} – {row.high:.3g}"
        goal = "" if row.at_most is None else f"≤ {row.at_most:g}: {'held' if row.held else '**not held**'}"
        lines.append(f"| {row.label} | {row.shape} | {row.peer} | **{row.median:.3g}** | {span} | {goal} |")
    return "\n".join(lines)
