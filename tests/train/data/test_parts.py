"""Texts in parts: every line in one part, equal documents in one half, and errors that name the place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopverify.errors import InputError
from train.data import parts
from train.data.parts import HELD_OUT_IN, half_of, line_parts
from train.data.sources import open_source
from train.data.text import Documents, Split


def read(path: Path) -> list[Split]:
    found = line_parts(path)
    return [document for part in range(found.parts) for document in found.read(part)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 1000])
def test_every_line_is_in_one_part_wherever_the_file_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(parts, "_PART", size)
    texts = ["é", "two\nlines", "x" * 40, "日本", "a", "b ", "the last one"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (tmp_path / "some.jsonl").write_text("\n\n".join(lines), encoding="utf-8")
    assert [text.strip() for _, text in read(tmp_path / "some.jsonl")] == [text.strip() for text in texts]


def test_plain_text_is_cut_into_blocks_of_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_PART", 1000)
    monkeypatch.setattr(parts, "_BLOCK", 100)
    lines = [f"line {i} of a text\n" for i in range(200)]
    (tmp_path / "some.txt").write_text("".join(lines))
    documents = [text for _, text in read(tmp_path / "some.txt")]
    assert "".join(documents) == "".join(lines)
    assert all(text.endswith("\n") for text in documents)
    assert max(map(len, documents)) < 100 + max(map(len, lines))


def test_a_folder_is_its_files_in_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl"):
        (tmp_path / name).write_text(json.dumps({"text": name}))
    (tmp_path / "c.csv").write_text("not read")
    assert [text for _, text in read(tmp_path)] == ["a.jsonl\n\n", "b.jsonl\n\n"]


def test_one_document_in_a_hundred_is_held_out_and_equal_ones_together() -> None:
    halves = [half_of(f"document {i}") for i in range(20_000)]
    expected, deviation = 20_000 / HELD_OUT_IN, (20_000 / HELD_OUT_IN * (1 - 1 / HELD_OUT_IN)) ** 0.5
    assert abs(halves.count("held_out") - expected) < 4 * deviation
    assert halves == [half_of(f"document {i}") for i in range(20_000)]


def test_size_decides_whether_a_text_is_held_or_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some.txt"
    path.write_text("one two three\n" * 100)
    assert isinstance(open_source(str(path)), Documents)
    monkeypatch.setattr("train.data.sources.AT_ONCE", path.stat().st_size - 1)
    streamed = open_source(str(path))
    assert not isinstance(streamed, Documents)
    path.write_text("one two three\n" * 99 + "one two four!\n")
    assert open_source(str(path)).digest != streamed.digest


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"text": "a"}\n{"text": 3}\n', r'some.jsonl, at byte 14 has .*; expected an object with a string "text"'),
        (b'{"text": "a"}\n{"text"\n', r"some.jsonl, at byte 14 is not JSON"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', r"some.jsonl is not UTF-8 text: byte 0xff at offset 24"),
        (b"\0\n", r"some.jsonl holds a NUL character at offset 0; it is binary data"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "some.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read(tmp_path / "some.jsonl")
