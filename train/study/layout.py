"""Row, Column and Table: how a table of the paper is laid out, and where each cell comes from, ours and the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loopverify.claims.p1 import published
from loopverify.claims.quantity import number
from loopverify.claims.template import Condition

__all__ = ["Cell", "Column", "Row", "Table"]

Cell = float | str
"""A number, or a text such as '>27.6' where the paper prints one."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: a condition, or one depth of it."""

    condition: Condition
    loop: int | None = None
    """The depth, in tables with a row for each."""

    @property
    def label(self) -> str:
        """Human-readable."""
        name = self.condition.name
        return name if self.loop is None else f"{name}, K = {self.loop}"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: a metric of ours, with {k} for the row's loop, and the paper's."""

    heading: str
    metric: str
    published: Callable[[Mapping[str, Cell], Row], Cell] | None = None
    """From the columns of a row in the paper to the cell; None where the paper has no such column."""
    form: str | None = None
    """How a number is written, as in Python's format; by its size when omitted."""

    def of(self, row: Row) -> str:
        """The metric of one row."""
        return self.metric.format(k=row.loop)

    def text(self, cell: Cell | None) -> str:
        """A cell, human-readable; a missing one is a dash."""
        if cell is None or isinstance(cell, str):
            return cell or "–"
        return number(cell) if self.form is None else format(cell, self.form)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of the paper."""

    name: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    note: str = ""
    """How ours differs."""

    def published(self, size: str, row: Row, column: Column) -> Cell | None:
        """What the paper prints; None where it prints nothing."""
        try:
            return (
                None
                if column.published is None
                else column.published(published.row(self.name, size, row.condition), row)
            )
        except KeyError:
            return None

    @property
    def sizes(self) -> tuple[str, ...]:
        """The model sizes that the paper has it for."""
        return tuple(published.tables()[self.name])

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions of its rows, each once."""
        return tuple(dict.fromkeys(row.condition.name for row in self.rows))

    @property
    def metrics(self) -> set[str]:
        """The expressions of all its cells."""
        return {column.of(row) for column in self.columns for row in self.rows}
