"""Documents: read from files and folders, split by document, rejected with a reason."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopverify.errors import InputError
from train.data.text import Document, cut, read_path, split


def numbered(count: int) -> list[Document]:
    return [Document(f"d{i}", f"text {i}\n") for i in range(count)]


@given(st.integers(10, 300))
def test_one_document_in_ten_is_held_out_and_none_is_in_both_halves(count: int) -> None:
    found = split("numbered", numbered(count))
    held_out, train = ([int(d.name[1:]) for d in half] for half in (found.held_out, found.train))
    assert sorted(held_out + train) == list(range(count))
    assert train == sorted(train)
    assert held_out == list(range(5, count, 10))


def test_the_split_does_not_depend_on_chance() -> None:
    assert split("numbered", numbered(30)) == split("numbered", numbered(30))


def test_few_documents_are_cut_into_pieces_first() -> None:
    text = "".join(f"Paragraph {i}.\n\n" for i in range(1000))
    found = split("one", [Document("one.txt", text)])
    assert len(found.train) + len(found.held_out) == pytest.approx(100, abs=10)
    pieces = sorted(found.train + found.held_out, key=lambda d: int(d.name.split("#")[1]))
    assert "".join(d.text for d in pieces) == text
    assert sum(len(d.text) for d in found.held_out) == pytest.approx(len(text) / 10, rel=0.05)


@given(st.text(alphabet="ab \n\t.", max_size=300).filter(str.strip))
def test_the_pieces_of_a_document_join_to_it(text: str) -> None:
    pieces = cut(Document("d", text))
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.name for piece in pieces] == [f"d#{i}" for i in range(1, len(pieces) + 1)]
    assert len(pieces) <= 100


def test_a_text_is_cut_at_blank_lines_else_at_lines_else_at_words() -> None:
    paragraphs = "".join(f"first line {i}\nsecond line\n \n" for i in range(12))
    assert all(piece.text.startswith("first") for piece in cut(Document("d", paragraphs)))
    lines = "".join(f"line {i}\n" for i in range(12))
    assert [piece.text for piece in cut(Document("d", lines))] == lines.splitlines(keepends=True)
    words = " ".join("abcdefghijkl")
    assert len(cut(Document("d", words))) == 12


def test_documents_end_in_white_space_so_that_the_next_one_begins_a_word() -> None:
    texts = [f"one {i}." if i % 2 else f"one {i}.\n" for i in range(10)]
    found = split("ten", [Document(str(i), text) for i, text in enumerate(texts)])
    assert {d.text for d in found.train + found.held_out} == {
        text if text.endswith("\n") else text + "\n\n" for text in texts
    }


def test_a_repeated_document_is_left_out_and_said_aloud() -> None:
    documents = [*numbered(12), Document("again", "text 5\n"), Document("blank", " \n")]
    found = split("numbered", documents)
    assert found.notice == "numbered: 1 of 13 documents repeat an earlier one; left out"
    assert {d.name for d in found.train + found.held_out} == {f"d{i}" for i in range(12)}
    assert split("numbered", numbered(12)).notice is None


def test_the_digest_depends_on_contents_order_and_halves() -> None:
    base = numbered(12)
    variants = [
        base,
        [base[0]._replace(text="other\n"), *base[1:]],
        [base[1], base[0], *base[2:]],
        # The same bytes, cut elsewhere between two documents.
        [base[0]._replace(text="text 0\ntext "), base[1]._replace(text="1\n"), *base[2:]],
        # The same documents in other halves.
        [base[5], *base[:5], *base[6:]],
    ]
    assert len({split("any", documents).digest for documents in variants}) == len(variants)


def test_what_a_text_and_its_documents_are_called_is_no_part_of_the_digest() -> None:
    base = numbered(12)
    renamed = [document._replace(name=f"other {i}") for i, document in enumerate(base)]
    assert split("one name", base).digest == split("another", renamed).digest


def test_a_folder_is_read_by_path_and_suffix(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("c.txt", "a.MD", "b/z.rst", "b/code.py", "d.bin"):
        (tmp_path / name).write_bytes(name.encode() if name != "d.bin" else b"\xff\0")
    (tmp_path / "lines.jsonl").write_text('{"text": "one"}\n\n{"text": "two\u2028", "id": 2}\n', encoding="utf-8")
    assert read_path(tmp_path) == [
        Document("a.MD", "a.MD"),
        Document("b/z.rst", "b/z.rst"),
        Document("c.txt", "c.txt"),
        Document("lines.jsonl#1", "one"),
        Document("lines.jsonl#3", "two\u2028"),
    ]


def test_line_ends_and_byte_order_marks_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "dos.txt").write_bytes("one\r\ntwo\r\n".encode("utf-8-sig"))
    assert read_path(tmp_path / "dos.txt") == [Document("dos.txt", "one\ntwo\n")]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("latin.txt", b"caf\xe9 au lait", "is not UTF-8 text: byte 0xe9 at offset 3 (invalid continuation byte)"),
        ("image.txt", b"PNG\0\0", "holds a NUL character at offset 3; it is binary data, not text"),
        ("bad.jsonl", b'{"text": "a"}\n{"text"\n', "bad.jsonl, line 2 is not JSON"),
        ("other.jsonl", b'{"id": 1, "body": "a"}', "line 1 has ['body', 'id']; expected an object with a string"),
        ("list.jsonl", b"[1]", 'line 1 has a list; expected an object with a string "text"'),
    ],
)
def test_a_file_that_is_no_text_is_rejected(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(InputError, match=re.escape(words)):
            read_path(path)


def test_paths_without_text_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere does not exist; expected a text file or a folder"):
        read_path(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"has no text; expected files that end in .jsonl, .md, .rst, .text, .txt"):
        read_path(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is neither a file nor a folder"):  # and reading it would never end
        read_path(tmp_path / "pipe")


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("secret", encoding="utf-8")
    path.chmod(0)
    if os.geteuid() == 0:  # who may read everything: the refusal has to be played

        def refuse(self: Path) -> bytes:
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match=r"cannot read .*secret\.txt: Permission denied"):
        read_path(path)


@pytest.mark.parametrize("texts", [[], [""], [" \n", "\t"]])
def test_no_text_is_rejected(texts: list[str]) -> None:
    with pytest.raises(InputError, match=rf"void holds no text \({len(texts)} documents, all empty\)"):
        split("void", [Document(str(i), text) for i, text in enumerate(texts)])


def test_one_word_cannot_be_split() -> None:
    with pytest.raises(InputError, match="void holds one word of 4 characters; expected a text that can be split"):
        split("void", [Document("d", "word")])


def test_two_words_can() -> None:
    found = split("pair", [Document("d", "two words")])
    assert [d.text for d in found.train + found.held_out] == ["two ", "words\n\n"]


def test_json_lines_of_a_file_are_documents(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"document {i}"}) for i in range(20)), encoding="utf-8")
    found = split(str(path), read_path(path))
    assert [d.text for d in found.held_out] == ["document 5\n\n", "document 15\n\n"]
    assert len(found.train) == 18
