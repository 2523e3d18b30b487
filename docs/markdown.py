"""Markdown for tables and lists."""

from __future__ import annotations

import textwrap

__all__ = ["code", "item", "paragraph"]

WIDTH = 120


def code(*names: str) -> str:
    """Names as code: '`a`, `b`'."""
    return ", ".join(f"`{name}`" for name in names)


def item(text: str) -> str:
    """A list item, in lines of at most 120 characters."""
    return _filled(text, "- ", "  ")


def paragraph(text: str) -> str:
    """The text in lines of at most 120 characters."""
    return _filled(text, "", "")


def _filled(text: str, first: str, others: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
