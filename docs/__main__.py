"""`python -m docs` lists stale tables of the pages; with --write, it writes them.

A table is placed between <!-- name --> and <!-- end of name --> and is generated from its source: the registries of
checks, claims and presets, audits of untrained models, and the results in docs/results and bench/. `--results FILE
--write` first copies the numbers that the tables need from the report.json of a study.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

from docs import library, studies
from docs.pages import Section, rewritten, stale_sections
from docs.results import from_report, read_json, stored
from loopverify.errors import LoopverifyError

UP_TO_DATE, STALE, WRONG_USE = 0, 1, 2
ROOT = Path(__file__).parents[1]
SECTIONS: Mapping[str, Section] = MappingProxyType(
    {
        "table-2": studies.table_2,
        "findings": studies.findings,
        "claims": studies.claims,
        "hops-exits": studies.hops_exits,
        "hops-accuracy": studies.hops_accuracy,
        "hops-claims": studies.hops_claims,
        "checks": library.checks,
        "traits": library.traits,
        "saboteurs": library.saboteurs,
        "clean-models": library.clean_models,
        "presets": library.presets,
        "losses": library.losses,
        "readouts": library.readouts,
        "recurrences": library.recurrences,
        "bench-cpu": partial(library.benchmarks, device="cpu"),
        "bench-cuda": partial(library.benchmarks, device="cuda"),
    }
)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command. Returns the exit status: 0 up to date (or written), 1 stale, 2 invalid use or input."""
    parser = argparse.ArgumentParser(prog="python -m docs", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the stale tables")
    parser.add_argument("--results", metavar="FILE", type=Path, help="report.json of a study whose numbers to show")
    given = parser.parse_args(arguments)
    if given.results and not given.write:
        parser.error("--results changes the stored results; give --write with it")
    try:
        if given.results:
            _copy(given.results, root)
        texts = rewritten(root, SECTIONS)
    except LoopverifyError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return WRONG_USE
    stale = stale_sections(root, texts)
    if given.write:
        for page, text in texts.items():
            page.write_text(text, encoding="utf-8")
    for section in stale:
        print(f"{'written' if given.write else 'stale'}: {section}")  # noqa: T201
    if stale and not given.write:
        print("python -m docs --write writes them")  # noqa: T201
        return STALE
    return UP_TO_DATE


def _copy(report: Path, root: Path) -> None:
    """Store the numbers of a report that the tables need, with the current commit and the date of the file."""
    record = read_json(report)
    file = stored(root, str(record.get("preset")))
    made = {
        "commit": _commit(root),
        "date": datetime.fromtimestamp(report.stat().st_mtime, UTC).date().isoformat(),
    }
    results = from_report(record, read_json(file) if file.exists() else None, made)
    file.write_text(json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _commit(root: Path) -> str:
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
