"""One report in several views: text for a terminal, JSON, Markdown, and a single HTML file.

report = build(runs, claims_for(["P1.T2"]))
print(report.to_text())
html, json = write(report, "runs/report")
"""

from __future__ import annotations

from loopverify.report.measured_rows import Row
from loopverify.report.report import Report, build
from loopverify.report.write import write

__all__ = ["Report", "Row", "build", "write"]
