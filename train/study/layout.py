"""Row, Column and Table: the layout of a table of the paper, and the source of each cell, ours and the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loopverify.claims.p1 import published
from loopverify.claims.quantity import number
from loopverify.claims.template import Condition

__all__ = ["Cell", "Column", "Row", "Table"]

Cell = float | str
"""A number, or a text where the paper prints one, such as '>27.6'."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: a condition, or a condition at one depth."""

    condition: Condition
    loop: int | None = None
    """The depth, in tables with one row per depth; None in others."""

    @property
    def label(self) -> str:
        """The row's name in the printed table."""
        name = self.condition.name
        return name if self.loop is None else f"{name}, K = {self.loop}"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: the expression of our metric, with {k} for the row's loop, and the paper's number."""

    heading: str
    metric: str
    published: Callable[[Mapping[str, Cell], Row], Cell] | None = None
    """Maps the paper's row, by column name, to the cell; None if the paper has no such column."""
    form: str | None = None
    """Python format of a number; by its size when omitted."""

    def of(self, row: Row) -> str:
        """The metric expression of one row."""
        return self.metric.format(k=row.loop)

    def text(self, cell: Cell | None) -> str:
        """A printed cell; a missing one is a dash."""
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
    """How our table differs from the paper's."""

    def published(self, size: str, row: Row, column: Column) -> Cell | None:
        """The cell that the paper prints for a model size; None if it prints none."""
        if column.published is None:
            return None
        try:
            return column.published(published.row(self.name, size, row.condition), row)
        except KeyError:
            return None

    @property
    def sizes(self) -> tuple[str, ...]:
        """The model sizes for which the paper has this table."""
        return tuple(published.tables()[self.name])

    @property
    def conditions(self) -> tuple[str, ...]:
        """The distinct conditions of its rows."""
        return tuple(dict.fromkeys(row.condition.name for row in self.rows))

    @property
    def metrics(self) -> set[str]:
        """The metric expressions of all cells."""
        return {column.of(row) for column in self.columns for row in self.rows}
