"""Texts read by the library datasets: from the Hugging Face hub, and from local Parquet and Arrow files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from loopverify.errors import InputError, MissingDependencyError
from train.data.parts import Parts, Reader, content_digest, half_of
from train.data.text import Half, Split, ended, files_of

__all__ = ["TABLES", "fineweb", "table_parts", "wikitext103"]

TABLES = {".parquet": "parquet", ".arrow": "arrow"}
"""Suffixes of readable tables, and their names in datasets."""
_ROWS_AT_ONCE = 10_000  # reading single rows would take a minute longer per million
_WIKITEXT_PARTS = 16


def wikitext103() -> Parts:
    """WikiText-103 raw by article, split as published into training and validation (the paper's text)."""
    return _hub("wikitext103", "Salesforce/wikitext", "wikitext-103-raw-v1", _wikitext_readers)


def fineweb() -> Parts:
    """FineWeb sample-10BT, streamed: one part per file."""
    return _hub("fineweb", "HuggingFaceFW/fineweb", "sample-10BT", _streamed_readers)


def table_parts(path: Path) -> Parts:
    """Local Parquet or Arrow files with a column "text": one part per file."""
    files = files_of(path, tuple(TABLES))
    return Parts(
        name=str(path),
        digest=content_digest(files, lambda file: TABLES[file.suffix.lower()]),
        open=lambda: [partial(_read_table, file) for file in files],
    )


def _hub(name: str, repository: str, config: str, readers: Callable[[str, str], list[Reader]]) -> Parts:
    """A text of the hub. Its digest is that of its name, so that a stored corpus is found without a connection."""

    def opened() -> list[Reader]:
        try:
            return readers(repository, config)
        except OSError as error:  # connection errors are OSErrors
            raise InputError(
                f"the text {name!r} is not in the cache of datasets and cannot be downloaded ({type(error).__name__}: "
                f"{error}). Load it once with a connection, or choose another text"
            ) from error

    return Parts(name=name, digest=hashlib.sha256(f"{repository}/{config}".encode()).hexdigest(), open=opened)


def _streamed_readers(repository: str, config: str) -> list[Reader]:
    rows = _datasets(repository).load_dataset(repository, config, split="train", streaming=True)
    count: int = rows.num_shards
    return [partial(_read_rows, rows.shard(num_shards=count, index=part)) for part in range(count)]


def _read_table(file: Path) -> Iterator[Split]:
    kind = TABLES[file.suffix.lower()]
    rows = _datasets(str(file)).load_dataset(kind, data_files=str(file), split="train", streaming=True)
    return _read_rows(rows, str(file))


def _read_rows(rows: Any, where: str = "the text") -> Iterator[Split]:
    for some in rows.iter(_ROWS_AT_ONCE):
        if "text" not in some:
            raise InputError(f'{where} has the columns {sorted(some)}; expected a column "text"')
        for text in some["text"]:
            if text and text.strip():
                yield half_of(text), ended(text)


def _wikitext_readers(repository: str, config: str) -> list[Reader]:
    halves = _datasets("wikitext103").load_dataset(repository, config)
    train = halves["train"]
    count = len(train)
    bounds = [count * part // _WIKITEXT_PARTS for part in range(_WIKITEXT_PARTS + 1)]
    return [
        *(partial(_read_articles, train, start, stop, "train") for start, stop in pairwise(bounds)),
        partial(_read_articles, halves["validation"], 0, len(halves["validation"]), "held_out"),
    ]


def _read_articles(rows: Any, start: int, stop: int, half: Half) -> Iterator[Split]:
    """The articles that begin in rows start..stop."""
    return ((half, article) for article in _articles(_rows_from(rows, start), start, stop))


def _rows_from(rows: Any, start: int) -> Iterator[str]:
    for first in range(start, len(rows), _ROWS_AT_ONCE):
        yield from rows[first : first + _ROWS_AT_ONCE]["text"]


def _articles(rows: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """Rows (one line of text each) joined to articles, which begin at a heading of the first level, ' = Title = '.

    `rows` are numbered from `start`; only articles that begin before row `stop` are returned. Rows before the first
    heading belong to the article before them, which another part returns, or, if `start` is 0, form an article.
    """
    article: list[str] | None = [] if start == 0 else None
    for number, row in enumerate(rows, start=start):
        if re.fullmatch(r" = [^=]+ = \n", row):
            written = article is not None and any(map(str.strip, article))
            if article is not None and written:
                yield "".join(article)
            if number >= stop:
                return
            if article is None or written:
                article = []
        if article is not None:
            article.append(row)
    if article is not None and any(map(str.strip, article)):
        yield "".join(article)


def _datasets(text: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            f"the text {text!r} is read by the package datasets, which is not installed: "
            "pip install 'loopverify[wikitext]'"
        ) from error
    return datasets
