"""`python -m bench`: measure, and write the record and the plot of the measurements to bench/.

-k EXPRESSION selects benchmarks, as in pytest, and keeps the other results of the last measurement; --from-json draws
its plot again without measuring. `python -m docs --write` writes the table to bench/README.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.results import measured, merged
from loopverify.report.ratios import RatioBar, draw_ratios

HERE = Path(__file__).parent
WRONG_USE = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("-k", dest="selected", metavar="EXPRESSION", help="measure only these, and keep the others")
    parser.add_argument("--from-json", action="store_true", help="do not measure again")
    arguments = parser.parse_args()
    file = HERE / f"{arguments.device}.json"
    status = 0 if arguments.from_json else _measure(file, arguments.device, arguments.selected)
    if not file.exists():
        print(f"error: no measurement in {file}; measure on a machine that has the device", file=sys.stderr)  # noqa: T201
        return WRONG_USE
    rows, _ = measured(file)
    bars = [
        RatioBar(
            label=f"{row.label}\n{row.shape}, over {row.peer}",
            median=row.median,
            low=row.low,
            high=row.high,
            goal=row.at_most,
        )
        for row in rows
    ]
    (HERE / f"{arguments.device}.svg").write_text(draw_ratios(bars), encoding="utf-8")
    return status


def _measure(file: Path, device: str, selected: str | None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "fresh.json"
        command = [sys.executable, "-m", "pytest", str(HERE), "--device", device, f"--benchmark-json={fresh}"]
        status = subprocess.run([*command, "-k", selected or ""], cwd=HERE.parent, check=False).returncode
        if fresh.exists() and fresh.stat().st_size:
            file.write_text(merged(fresh, file if selected else None), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
