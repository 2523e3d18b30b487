"""Records as tables of at most 100 columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from loopverify.checks import CheckResult
from loopverify.claims import Evidence

__all__ = ["checks", "claims", "evidence", "findings"]

_STYLES = {
    "passed": "green",
    "held": "green",
    "failed": "bold red",
    "error": "bold red",
    "xpassed": "bold red",
    "contradicted": "bold red",
    "inconclusive": "yellow",
}
_WRONG = ("failed", "error", "xpassed")


def findings(lines: Iterable[tuple[str, str]]) -> Table:
    """One row per (subject, finding)."""
    table = Table.grid(padding=(0, 2))
    for line in lines:
        table.add_row(*map(Text, line))
    return table


def checks(results: Sequence[CheckResult]) -> Iterator[RenderableType]:
    """Skipped checks grouped by reason; then one row per check, failures last and in full."""
    table = _table("status", "check", "found")
    for result in sorted(results, key=lambda result: result.status in _WRONG):
        if result.status != "skipped":
            in_full = result.status in _WRONG
            found = Text(result.message, no_wrap=not in_full, overflow="fold" if in_full else "ellipsis")
            table.add_row(_status(result.status), Text(result.id), found)
    reasons: dict[str, list[str]] = defaultdict(list)
    for result in results:
        if result.status == "skipped":
            reasons[result.message].append(result.id)
    for reason, ids in reasons.items():
        yield Text(f"skipped {', '.join(ids)}: {reason}", style="dim")
    yield table


def claims(listed: Iterable[Evidence]) -> Table:
    """One row per claim: what it requires, and what the paper found."""
    table = _table("claim", "required", "paper")
    for entry in listed:
        table.add_row(*map(Text, (entry.claim, entry.required_text, entry.published_text)))
    return table


def evidence(judged: Iterable[Evidence], title: str) -> Table:
    """One row per judged claim: the verdict, what was measured, what is required, and seeds per side."""
    table = _table("verdict", "claim", "measured", "required", "n", title=title)
    for entry in (entry for entry in judged if entry.verdict != "not run"):
        cells = (entry.claim, entry.measured_text, entry.required_text, entry.n)
        table.add_row(_status(entry.verdict), *map(Text, cells))
    return table


def _table(*headings: str, title: str | None = None) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title=title and Text(title), title_justify="left")
    for heading in headings:
        table.add_column(Text(heading, style="bold"), overflow="fold")
    return table


def _status(status: str) -> Text:
    return Text(status, style=_STYLES.get(status, "dim"))
