"""Corpora: tokenized once, kept, found again, and made again where the kept one is damaged."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loopverify.errors import InputError
from train.data import DataSpec, load_corpus, tokenized_parts
from train.data.sources import open_source
from train.data.tokenizer import RULES
from train.provenance.closure import closure, code_digest
from train.store import StoreError

TOKENIZED = "held_out-00000.bin"


@pytest.fixture
def spec(tmp_path: Path) -> DataSpec:
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(20):
        # Every document has a word of its own, twice.
        (folder / f"{i:02}.txt").write_text(f"shared word{i} shared word{i}\n", encoding="utf-8")
    return DataSpec(source=str(folder), vocab_max=64, min_freq=2)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_the_tokens_are_those_of_the_text(spec: DataSpec, cache: Path) -> None:
    corpus = load_corpus(spec, cache)
    kept = [i for i in range(20) if i not in (5, 15)]
    assert corpus.tokenizer.decode(corpus.train) == "".join(f"shared word{i} shared word{i}\n" for i in kept)
    # The vocabulary is that of the training half: it has never seen the words of the held-out documents.
    assert corpus.tokenizer.decode(corpus.held_out) == "shared <unk> shared <unk>\n" * 2
    (shard,) = corpus.train.shards
    assert isinstance(shard, np.memmap)  # nothing is read before it is looked at
    assert shard.dtype == np.uint16
    assert corpus.vocab_size == 1 + 3 + 18  # <unk>; the word, the space and the line end they share; their own words
    assert (corpus.name, corpus.dropped, corpus.notice) == (spec.source, 0, None)
    assert corpus.recorded_name == f"local text {open_source(spec.source).digest[:16]}"
    assert corpus.characters == sum(len(f"shared word{i} shared word{i}\n") for i in range(20))


def test_a_second_start_tokenizes_nothing(spec: DataSpec, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_corpus(spec, cache)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("tokenized again")

    monkeypatch.setattr("train.data.corpus.make_pieces", refuse)
    again = load_corpus(spec, cache)
    assert np.array_equal(again.train, first.train)
    assert np.array_equal(again.held_out, first.held_out)
    assert (again.tokenizer, again.digest) == (first.tokenizer, first.digest)
    assert (again.characters, again.dropped) == (first.characters, first.dropped)


def test_the_digest_follows_text_and_sizes_and_not_the_place(spec: DataSpec, cache: Path) -> None:
    base = load_corpus(spec, cache)
    folder = Path(spec.source)
    moved = folder.rename(folder.with_name("moved"))
    assert load_corpus(replace(spec, source=str(moved)), cache).digest == base.digest
    spec = replace(spec, source=str(moved))
    others = [load_corpus(replace(spec, vocab_max=8), cache), load_corpus(replace(spec, min_freq=1), cache)]
    (moved / "00.txt").rename(moved / "00 called otherwise.md")  # in the same place among the files
    assert load_corpus(spec, cache).digest == base.digest
    (moved / "00 called otherwise.md").write_text("changed\n", encoding="utf-8")
    others.append(load_corpus(spec, cache))
    assert len({base.digest, *(other.digest for other in others)}) == 4


def test_other_code_or_other_unicode_tables_make_other_tokens(
    spec: DataSpec, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = {load_corpus(spec, cache).digest}
    monkeypatch.setattr("train.data.corpus._CODE", "that of a changed tokenizer")
    digests.add(load_corpus(spec, cache).digest)
    monkeypatch.setattr("train.data.corpus.RULES", {**RULES, "unicode": "99.0"})
    digests.add(load_corpus(spec, cache).digest)
    assert len(digests) == len(list(cache.glob("corpora/*"))) == 3


def test_a_piece_of_a_changed_tokenizer_is_not_taken_up(spec: DataSpec) -> None:
    text = open_source(spec.source)
    key = tokenized_parts._key(text, 0)
    assert key["code"] == code_digest("train.data.tokenized_parts")
    assert "train.data.tokenizer" in {module.name for module in closure(["train.data.tokenized_parts"])}


def test_as_many_parts_as_there_are_is_the_whole_text(spec: DataSpec, cache: Path) -> None:
    base = load_corpus(spec, cache)
    assert [load_corpus(replace(spec, parts=parts), cache).digest for parts in (1, 7)] == [base.digest] * 2


def test_the_same_bytes_read_otherwise_are_another_text(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.data.sources.AT_ONCE", 0)  # as a text too large to be held
    lines = "".join(json.dumps({"text": f"a document of its own, {i}"}) + "\n" for i in range(300))
    digests = set()
    for name in ("same.jsonl", "same.txt"):
        (tmp_path / name).write_text(lines, encoding="utf-8")
        digests.add(open_source(str(tmp_path / name)).digest)
    assert len(digests) == 2


@pytest.mark.parametrize("damage", ["cut short", "flipped", "gone"])
def test_a_damaged_cache_is_never_used(
    spec: DataSpec, cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = load_corpus(spec, cache)
    train, held_out = np.asarray(first.train), np.asarray(first.held_out)  # read before it is damaged
    (path,) = cache.glob(f"corpora/*/{TOKENIZED}")
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        content[-1] ^= 1
        path.write_bytes(content if damage == "flipped" else content[:-1])
    again = load_corpus(spec, cache)
    assert np.array_equal(again.train, train)
    assert np.array_equal(again.held_out, held_out)
    (record,) = caplog.records
    assert re.search(rf"is corrupt: {TOKENIZED} .*\. Moved to .*corrupt.*; the text is tokenized again", record.message)


CHILD = """
import sys
from pathlib import Path
from train.data import DataSpec, corpus, load_corpus
make_pieces = corpus.make_pieces
def reported(*args, **kwargs):
    print("tokenizing", flush=True)
    sys.stdin.readline()  # until the parent writes a line
    return make_pieces(*args, **kwargs)
corpus.make_pieces = reported
print(load_corpus(DataSpec(source=sys.argv[1], vocab_max=64, min_freq=2), Path(sys.argv[2])).digest)
"""


def test_of_two_processes_one_tokenizes_and_the_other_waits(
    spec: DataSpec, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("tokenized twice")

    monkeypatch.setattr("train.data.corpus.make_pieces", refuse)
    command = [sys.executable, "-c", CHILD, spec.source, str(cache)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
        ThreadPoolExecutor(1) as pool,
    ):
        assert child.stdout is not None
        assert child.stdout.readline() == "tokenizing\n"
        waiting = pool.submit(load_corpus, spec, cache)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        digest = child.communicate("go on\n", timeout=60)[0].strip()
        assert waiting.result(timeout=60).digest == digest


def test_what_a_user_should_know_is_logged_and_kept(
    spec: DataSpec, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (Path(spec.source) / "20.txt").write_text("shared word0 shared word0\n", encoding="utf-8")
    notice = f"{spec.source}: 1 of 21 documents repeat an earlier one; left out"
    assert load_corpus(spec, cache).notice == notice
    assert load_corpus(spec, cache).notice == notice  # also from the cache
    assert caplog.messages == [notice, notice]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_dropped_characters_are_counted_and_said_aloud_where_they_matter(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "some.txt"
    path.write_text("\n".join(f"plain words of line {i}" for i in range(100)) + " é", encoding="utf-8")
    corpus = load_corpus(DataSpec(source=str(path), vocab_max=64, min_freq=1), cache)
    assert (corpus.dropped, corpus.notice) == (1, None)
    assert caplog.messages == []
    path.write_text("\n".join(f"été {i}" for i in range(10, 30)) + "\n", encoding="utf-8")
    corpus = load_corpus(DataSpec(source=str(path), vocab_max=64, min_freq=1), cache)
    assert (corpus.dropped, corpus.characters) == (40, 140)
    assert corpus.notice == (
        f"{path}: 40 of 140 characters are letters or digits outside ASCII, which the paper's tokenizer drops"
    )
    assert caplog.messages == [corpus.notice]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_max": 1}, "vocab_max is 1; expected an integer >= 2"),
        ({"min_freq": 0}, "min_freq is 0; expected an integer >= 1"),
        ({"parts": 0}, "parts is 0; expected an integer >= 1, or None for the whole text"),
        ({"source": " "}, "source is ' '; expected the name of a text, or a path"),
    ],
)
def test_a_spec_that_names_no_corpus_is_rejected(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(DataSpec(), **changes)


def test_the_manifest_contains_the_source_the_tokenizer_and_the_counts(spec: DataSpec, cache: Path) -> None:
    corpus = load_corpus(spec, cache)
    (path,) = cache.glob("corpora/*/manifest.json")
    recorded = json.loads(path.read_text())
    assert recorded["spec"]["text"] == open_source(spec.source).digest
    assert recorded["facts"]["tokenizer"] == corpus.tokenizer.digest
    assert recorded["facts"]["documents"] == {"train": 18, "held_out": 2}
    assert recorded["facts"]["tokens"] == {"train": 18 * 8, "held_out": 2 * 8}
    assert set(recorded["files"]) == {"train-00000.bin", "held_out-00000.bin", "tokenizer.json"}
    assert recorded["files"]["train-00000.bin"]["bytes"] == 2 * 18 * 8
    assert list(cache.glob("pieces/*")) == []  # what is joined is not kept twice


def test_a_failure_leaves_nothing_behind(spec: DataSpec, cache: Path) -> None:
    with pytest.raises(InputError, match="min_freq is 99, but the most frequent token of the text occurs 54 times"):
        load_corpus(replace(spec, min_freq=99), cache)  # 18 documents: 54 spaces
    assert list(cache.glob("corpora/*")) == []


def test_a_cache_that_cannot_be_is_rejected(spec: DataSpec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    with pytest.raises(StoreError, match=r"no store can be at .*file/cache: .*file is not a folder"):
        load_corpus(spec, tmp_path / "file" / "cache")
