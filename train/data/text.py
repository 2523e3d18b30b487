"""Documents: a text in memory, split into training and held-out documents; and how files and folders are read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from loopverify.errors import InputError

__all__ = [
    "HELD_OUT_EVERY",
    "SUFFIXES",
    "Document",
    "Documents",
    "Half",
    "Source",
    "Split",
    "cut",
    "decoded",
    "ended",
    "files_of",
    "json_text",
    "read_path",
    "split",
]

Half = Literal["train", "held_out"]
Split = tuple[Half, str]
"""The half of a document, and its text."""


class Source(Protocol):
    """A text in parts, each of which can be read independently by any process."""

    @property
    def name(self) -> str:
        """Human-readable name of the source."""

    @property
    def digest(self) -> str:
        """Hex digest that identifies the text."""

    @property
    def notice(self) -> str | None:
        """A warning about the source for the user, or None."""

    @property
    def parts(self) -> int:
        """The number of parts: a property of the text, independent of its readers."""

    def read(self, part: int) -> Iterator[Split]:
        """The documents of part 0, 1, ..., parts - 1; the text is the concatenation of all parts in this order."""


HELD_OUT_EVERY = 10
"""One document in so many is held out (the 6th, 16th, 26th, ...): if documents are ordered by time or cut from one
text, the held-out ones are spread evenly."""
SUFFIXES = (".jsonl", ".md", ".rst", ".text", ".txt")
"""Suffixes of the files of a folder that are read."""

_PIECES = 100
_BREAKS = (r"\n[^\S\n]*\n\s*", r"\n\s*", r"\s+")  # blank lines, else line ends, else any white space


class Document(NamedTuple):
    """One text and its name in the source."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Documents:
    """A source of text in one part, split so that no document is in both halves."""

    name: str
    """Human-readable name of the source."""
    train: tuple[Document, ...]
    held_out: tuple[Document, ...]
    notice: str | None = None
    """A warning about the source for the user, or None."""

    @property
    def parts(self) -> int:
        """One: the text is in memory."""
        return 1

    def read(self, part: int) -> Iterator[Split]:
        """All documents, the training half first."""
        yield from (("train", document.text) for document in self.train)
        yield from (("held_out", document.text) for document in self.held_out)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the texts of both halves, in order, without the names of documents, which are not
        tokenized."""
        digest = hashlib.sha256()
        for half in (self.train, self.held_out):
            digest.update(f"{len(half)}\n".encode())
            for document in half:
                text = document.text.encode()
                digest.update(
                    f"{len(text)}\n".encode() + text
                )  # with lengths, so that other boundaries give another digest
        return digest.hexdigest()


def split(source: str, documents: Sequence[Document]) -> Documents:
    """Hold out one document in `HELD_OUT_EVERY`; if there are fewer, the middle one.

    Documents without words are left out. So are documents that repeat an earlier text, which could otherwise be in both
    halves; the notice reports them. Fewer than `HELD_OUT_EVERY` documents are first `cut` into pieces.

    Raises:
        InputError: there is no text, or it cannot be split.
    """
    written = [d for d in documents if d.text.strip()]
    if not written:
        raise InputError(f"{source} holds no text ({len(documents)} documents, all empty); give a text with words")
    distinct: dict[str, Document] = {}
    for document in written:
        distinct.setdefault(document.text, document)
    repeated = len(written) - len(distinct)
    notice = f"{source}: {repeated} of {len(written)} documents repeat an earlier one; left out" if repeated else None
    pieces = list(distinct.values())
    if len(pieces) < HELD_OUT_EVERY:
        pieces = [piece for document in pieces for piece in cut(document)]
    if len(pieces) < 2:
        raise InputError(
            f"{source} holds one word of {len(pieces[0].text)} characters; expected a text that can be split into a "
            "training and a held-out half"
        )
    every = min(HELD_OUT_EVERY, len(pieces))
    held_out = range(every // 2, len(pieces), every)
    return Documents(
        name=source,
        train=tuple(d._replace(text=ended(d.text)) for i, d in enumerate(pieces) if i not in held_out),
        held_out=tuple(pieces[i]._replace(text=ended(pieces[i].text)) for i in held_out),
        notice=notice,
    )


def cut(document: Document) -> list[Document]:
    """A document as about a hundred contiguous pieces of similar length that join to its text.

    It is cut at blank lines; if that gives fewer than `HELD_OUT_EVERY` pieces, at line ends; if that still does, at any
    white space.
    """
    blocks = [document.text]
    for at in _BREAKS:
        blocks = _blocks(document.text, at)
        if len(blocks) >= HELD_OUT_EVERY:
            break
    pieces: dict[int, list[str]] = {}
    begun = 0
    for block in blocks:
        pieces.setdefault(begun * _PIECES // len(document.text), []).append(block)
        begun += len(block)
    return [Document(f"{document.name}#{i}", "".join(piece)) for i, piece in enumerate(pieces.values(), start=1)]


def read_path(path: Path) -> list[Document]:
    """The documents of a file or a folder.

    A folder: its files with one of `SUFFIXES`, at any depth, in the order of their paths. A .jsonl file: the "text"
    of each line. Any other file: one document.

    Raises:
        InputError: the path does not exist, contains no readable file, or a file is not UTF-8 text.
    """
    try:
        if path.is_dir():
            return list(_read_folder(path))
        if path.is_file():
            return list(_read_file(path, path.name))
    except OSError as error:
        raise InputError(f"cannot read {error.filename or path}: {error.strerror or error}") from error
    kind = "is neither a file nor a folder" if path.exists() else "does not exist"
    raise InputError(f"{path} {kind}; expected a text file or a folder of text files")


def files_of(path: Path, suffixes: tuple[str, ...] = SUFFIXES) -> list[Path]:
    """The file itself, or the files of a folder with one of `suffixes`, at any depth, in the order of their paths."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.suffix.lower() in suffixes and file.is_file())


def decoded(content: bytes, file: Path, at: int = 0) -> str:
    """The UTF-8 text of `content`, the bytes of a file from offset `at` on.

    Raises:
        InputError: it is not UTF-8, or holds a NUL character.
    """
    try:
        text = content.decode("utf-8-sig" if at == 0 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset {at + error.start} "
            f"({error.reason}). Convert it to UTF-8, or leave it out"
        ) from error
    if "\0" in text:
        raise InputError(f"{file} holds a NUL character at offset {at + content.index(0)}; it is binary data, not text")
    return text


def _read_folder(folder: Path) -> Iterator[Document]:
    files = files_of(folder)
    if not files:
        raise InputError(f"the folder {folder} has no text; expected files that end in {', '.join(SUFFIXES)}")
    for file in files:
        yield from _read_file(file, file.relative_to(folder).as_posix())


def _read_file(path: Path, name: str) -> Iterator[Document]:
    text = decoded(path.read_bytes(), path).replace("\r\n", "\n").replace("\r", "\n")
    if path.suffix.lower() != ".jsonl":
        yield Document(name, text)
        return
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: JSON strings may hold U+2028
        if line.strip():
            yield Document(f"{name}#{number}", json_text(line, f"{path}, line {number}"))


def json_text(line: str, where: str) -> str:
    """The "text" of a line of a .jsonl file.

    Raises:
        InputError: the line is not an object with a string "text"; the message names `where`.
    """
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not JSON: {error}") from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        seen = sorted(record) if isinstance(record, dict) else f"a {type(record).__name__}"
        raise InputError(f'{where} has {seen}; expected an object with a string "text"')
    return text


def _blocks(text: str, at: str) -> list[str]:
    """The text, cut after every match of the pattern."""
    ends = [match.end() for match in re.finditer(at, text)]
    return [block for a, b in zip([0, *ends], [*ends, len(text)], strict=True) if (block := text[a:b])]


def ended(text: str) -> str:
    """The text with a blank line added unless it ends in white space, which separates it from the next document."""
    return text if text[-1].isspace() else text + "\n\n"
