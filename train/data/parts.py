"""Parts: a text too large for memory, read part by part; and how local files of any size are divided into parts.

A part does not know the number of documents of the whole text, so each document is assigned to a half by a hash of its
content. Equal documents are therefore in the same half, in whichever parts they occur.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from loopverify.errors import InputError
from train.data.text import Half, Split, decoded, ended, files_of, json_text

__all__ = ["AT_ONCE", "HELD_OUT_IN", "Parts", "Reader", "content_digest", "half_of", "line_parts", "size_of"]

AT_ONCE = 2**30
"""Bytes of text up to which a file or a folder is read into memory as a whole."""
HELD_OUT_IN = 100
"""One document in so many is held out from a text in parts."""
_PART = 2**28  # bytes per part, about a minute on one core
_BLOCK = 2**14  # bytes of consecutive lines that form one document of plain text

Reader = Callable[[], Iterator[Split]]
"""Returns the documents of one part."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A source of text in parts, which are read independently; it is opened at the first read."""

    name: str
    digest: str
    open: Callable[[], Sequence[Reader]]
    notice: str | None = None

    @property
    def parts(self) -> int:
        """The number of parts."""
        return len(self._readers)

    def read(self, part: int) -> Iterator[Split]:
        """The documents of a part."""
        return self._readers[part]()

    @cached_property
    def _readers(self) -> Sequence[Reader]:
        return self.open()


def half_of(text: str) -> Half:
    """The half of a document: a function of its text alone."""
    drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return "held_out" if drawn % HELD_OUT_IN == 0 else "train"


def size_of(path: Path) -> int:
    """Size in bytes of a file, or of the text files of a folder."""
    return sum(file.stat().st_size for file in files_of(path))


def content_digest(files: Sequence[Path], kind_of: Callable[[Path], str]) -> str:
    """SHA-256 (hex) of the contents of files, in order, and of the kind of each, which determines how it is read."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            digest.update(f"{kind_of(file)}\n".encode() + hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def line_parts(path: Path) -> Parts:
    """A file or a folder of any size, in parts of whole lines.

    A .jsonl file has one document per line; in any other file, blocks of lines of about 16 kB are the documents.
    """
    files = files_of(path)
    readers = [
        partial(_read_range, file, start, start + _PART)
        for file in files
        for start in range(0, file.stat().st_size, _PART)
    ]
    return Parts(name=str(path), digest=content_digest(files, _kind_of), open=lambda: readers)


def _kind_of(file: Path) -> str:
    return "json" if file.suffix.lower() == ".jsonl" else "lines"


def _read_range(file: Path, start: int, stop: int) -> Iterator[Split]:
    """The documents of the lines that begin in bytes start..stop of a file."""
    texts = _json_lines(file, start, stop) if _kind_of(file) == "json" else _blocks(file, start, stop)
    return ((half_of(text), ended(text)) for text in texts if text.strip())


def _json_lines(file: Path, start: int, stop: int) -> Iterator[str]:
    return (json_text(line, f"{file}, at byte {at}") for at, line in _lines(file, start, stop) if line.strip())


def _blocks(file: Path, start: int, stop: int) -> Iterator[str]:
    block: list[str] = []
    size = 0
    for _, line in _lines(file, start, stop):
        block.append(line)
        size += len(line)
        if size >= _BLOCK:
            yield "".join(block)
            block, size = [], 0
    yield "".join(block)


def _lines(file: Path, start: int, stop: int) -> Iterator[tuple[int, str]]:
    """(offset, line) of the lines that begin in bytes start..stop."""
    try:
        with file.open("rb") as opened:
            if start:
                opened.seek(start - 1)
                opened.readline()  # the rest of a line that begins in the range before
            while (at := opened.tell()) < stop and (line := opened.readline()):
                yield at, decoded(line, file, at).replace("\r\n", "\n")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
