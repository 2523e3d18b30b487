"""`python -m bench`: measure, and put the table and the plot of what was measured into bench/.

-k EXPRESSION measures only what it selects, as pytest does, and keeps the rest of the last measurement; --from-json
makes table and plot of that again, without measuring.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.record import measured, merged, table
from loopverify.report.ratios import RatioBar, draw_ratios

HERE = Path(__file__).parent
WRONG_USE = 2
_BEGIN, _END = "<!-- {device}: python -m bench -->\n", "<!-- end of {device} -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("-k", dest="selected", metavar="EXPRESSION", help="measure only these, and keep the others")
    parser.add_argument("--from-json", action="store_true", help="do not measure again")
    asked = parser.parse_args()
    file = HERE / f"{asked.device}.json"
    status = 0 if asked.from_json else _measure(file, asked.device, asked.selected)
    if not file.exists():
        print(f"error: no measurement in {file}; measure on a machine that has the device", file=sys.stderr)  # noqa: T201
        return WRONG_USE
    rows, machine = measured(file)
    _insert(table(rows, machine), asked.device)
    bars = [
        RatioBar(
            label=f"{row.told}\n{row.shape}, over {row.peer}",
            median=row.median,
            low=row.low,
            high=row.high,
            goal=row.at_most,
        )
        for row in rows
    ]
    (HERE / f"{asked.device}.svg").write_text(draw_ratios(bars), encoding="utf-8")
    return status


def _measure(file: Path, device: str, selected: str | None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "fresh.json"
        command = [sys.executable, "-m", "pytest", str(HERE), "--device", device, f"--benchmark-json={fresh}"]
        status = subprocess.run([*command, "-k", selected or ""], cwd=HERE.parent, check=False).returncode
        if fresh.exists() and fresh.stat().st_size:
            file.write_text(merged(fresh, file if selected else None), encoding="utf-8")
    return status


def _insert(text: str, device: str) -> None:
    """Put the table between its marks in the page."""
    page = HERE / "README.md"
    begin, end = _BEGIN.format(device=device), _END.format(device=device)
    old = page.read_text(encoding="utf-8")
    new = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}{text}\n{end}", old, flags=re.DOTALL)
    page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
