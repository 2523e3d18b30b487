"""Parts: a text too large to be held, read a part at a time; and how local files of any size become parts.

Such a text is not split by the number of its documents, which no part knows, but by what they say: equal documents are
in the same half, wherever they are.
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
"""Bytes of text up to which a file or a folder is held whole."""
HELD_OUT_IN = 100
"""One document in so many is held out of a text in parts."""
_PART = 2**28  # bytes of a part, about a minute of one core
_BLOCK = 2**14  # bytes from which lines of plain text, which has no documents, are one

Reader = Callable[[], Iterator[Split]]
"""The documents of one part."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A source of text in parts that are read one by one; opened when it is first read."""

    name: str
    digest: str
    open: Callable[[], Sequence[Reader]]
    notice: str | None = None

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return len(self._readers)

    def read(self, part: int) -> Iterator[Split]:
        """The documents of a part."""
        return self._readers[part]()

    @cached_property
    def _readers(self) -> Sequence[Reader]:
        return self.open()


def half_of(text: str) -> Half:
    """Which half a document is in: a function of its text alone."""
    drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return "held_out" if drawn % HELD_OUT_IN == 0 else "train"


def size_of(path: Path) -> int:
    """Bytes of the text of a file or a folder."""
    return sum(file.stat().st_size for file in files_of(path))


def content_digest(files: Sequence[Path], kind_of: Callable[[Path], str]) -> str:
    """SHA-256 (hex) over the contents of files, in order, and how each is read."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            digest.update(f"{kind_of(file)}\n".encode() + hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def line_parts(path: Path) -> Parts:
    """A file or a folder of any size, in parts of whole lines.

    A .jsonl file has a document a line; of any other, a document is as many lines as make a block of about 16 kB.
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
                opened.readline()  # the rest of a line that another range has, or the end of one
            while (at := opened.tell()) < stop and (line := opened.readline()):
                yield at, decoded(line, file, at).replace("\r\n", "\n")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
