"""A text in parts becomes one corpus: whoever makes the parts, killed or not, damaged or not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from train.data import DataSpec, Tokenizer, load_corpus
from train.data.sources import open_source
from train.data.windows import Windows

datasets = pytest.importorskip("datasets", reason="needs the extra wikitext")
PARTS = 4


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSpec:
    """Tables of documents, each with words that the others lack."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    folder = tmp_path / "text"
    folder.mkdir()
    for part in range(PARTS):
        texts = [f"words of part{part} and of page{i} and page{i}" for i in range(150)]
        datasets.Dataset.from_dict({"text": texts}).to_parquet(folder / f"{part}.parquet")
    return DataSpec(source=str(folder), vocab_max=64, min_freq=2)


def files(cache: Path) -> dict[str, bytes]:
    (corpus,) = cache.glob("corpora/*")
    return {path.name: path.read_bytes() for path in corpus.iterdir() if path.name != "manifest.json"}


def test_the_tokens_are_those_of_the_whole_text(spec: DataSpec, tmp_path: Path) -> None:
    corpus = load_corpus(spec, tmp_path / "cache", workers=1)
    source = open_source(spec.source)
    documents = [document for part in range(PARTS) for document in source.read(part)]
    train = [text for half, text in documents if half == "train"]
    tokenizer = Tokenizer.fit(train, vocab_max=64, min_freq=2)
    assert corpus.tokenizer == tokenizer
    assert len(corpus.train.shards) == PARTS
    assert np.array_equal(corpus.train, tokenizer.encode("".join(train)))
    assert np.array_equal(corpus.held_out, tokenizer.encode("".join(t for half, t in documents if half == "held_out")))
    assert corpus.characters == sum(len(text) for _, text in documents)


def test_tokens_and_their_order_do_not_depend_on_who_tokenized(spec: DataSpec, tmp_path: Path) -> None:
    said: list[str] = []
    alone = load_corpus(spec, tmp_path / "a", workers=1)
    shared = load_corpus(spec, tmp_path / "b", workers=2, say=said.append)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert alone.digest == shared.digest
    assert sorted(said)[-1].endswith(f"part {PARTS} tokenized ({said.index(sorted(said)[-1]) + 1} of {PARTS})")
    a, b = (Windows(one.train, 16, 8) for one in (alone, shared))
    for step in (0, 5, 1):
        assert torch.equal(a.batch(a.order(step, 4, 7))[0], b.batch(b.order(step, 4, 7))[0])


def test_only_some_parts_are_used_if_so_many_are_requested(spec: DataSpec, tmp_path: Path) -> None:
    whole = load_corpus(spec, tmp_path / "a", workers=1)
    some = load_corpus(DataSpec(source=spec.source, vocab_max=64, parts=2), tmp_path / "a", workers=1)
    assert len(some.train.shards) == 2
    assert some.digest != whole.digest
    assert "part2" not in some.tokenizer.decode(some.train)


CHILD = """
import sys
from pathlib import Path
from train.data import DataSpec, load_corpus, tokenized_parts
tokenize = tokenized_parts._tokenize
def reported(documents, folder):
    facts = tokenize(documents, folder)
    print("tokenized", flush=True)
    sys.stdin.readline()  # until the parent writes a line
    return facts
tokenized_parts._tokenize = reported
load_corpus(DataSpec(source=sys.argv[1], vocab_max=64, min_freq=2), Path(sys.argv[2]), workers=1)
"""


def test_what_was_finished_when_it_was_killed_is_kept_and_verified(
    spec: DataSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", CHILD, spec.source, str(cache)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for part in range(3):
            assert child.stdout.readline() == "tokenized\n"
            if part < 2:
                child.stdin.write("go on\n")
                child.stdin.flush()
        child.send_signal(signal.SIGKILL)  # two parts are stored, the third is all but
    _, second = sorted(cache.glob("pieces/*/train.bin"), key=lambda path: path.stat().st_mtime_ns)
    damaged = bytearray(second.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    second.write_bytes(damaged)
    said: list[str] = []
    resumed = load_corpus(spec, cache, workers=1, say=said.append)
    assert said == [
        f"{spec.source}: 1 of {PARTS} parts are there",
        *(f"{spec.source}: part {part} tokenized ({part} of {PARTS})" for part in (2, 3, 4)),
    ]
    (output,) = caplog.messages
    assert "train.bin was changed" in output
    assert "this part is tokenized again" in output
    assert resumed.digest == load_corpus(spec, tmp_path / "other", workers=1).digest
