"""Texts that datasets reads, by the library itself on rows of our own: articles, streamed parts, local tables."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from loopverify.errors import InputError, MissingDependencyError
from train.data.sources import open_source
from train.data.text import Source, Split

ROWS = {
    "train": [
        "",
        " = First = \n",
        "",
        " Text of it . \n",
        " = = Section = = \n",
        " More . \n",
        "",
        " = Second = \n",
        " B \n",
    ],
    "validation": ["", " = Third = \n", " C \n", ""],
    "test": [" = Never = \n", " D \n"],
}
datasets = pytest.importorskip("datasets", reason="needs the extra wikitext")


def read(source: Source) -> list[Split]:
    return [document for part in range(source.parts) for document in source.read(part)]


def wikitext(rows: dict[str, list[str]]) -> object:
    return datasets.DatasetDict({half: datasets.Dataset.from_dict({"text": of_half}) for half, of_half in rows.items()})


def test_wikitext_is_read_by_article_and_keeps_its_own_split(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *names: (requested.append(names), wikitext(ROWS))[1])
    assert read(open_source("wikitext103")) == [
        ("train", " = First = \n Text of it . \n = = Section = = \n More . \n"),
        ("train", " = Second = \n B \n"),
        ("held_out", " = Third = \n C \n"),
    ]
    assert requested == [("Salesforce/wikitext", "wikitext-103-raw-v1")]


@pytest.mark.parametrize("count", [1, 5, 16, 17, 40])
def test_every_article_is_in_one_part(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    rows = ["", "", *(row for i in range(count) for row in (f" = {i} = \n", *["x \n"] * (i % 4)))]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: wikitext({"train": rows, "validation": [" = v = \n"]}))
    articles = [text for half, text in read(open_source("wikitext103")) if half == "train"]
    assert articles == re.findall(r" = \d+ = \n(?:x \n)*", "".join(rows))
    assert len(articles) == count


def test_fineweb_is_streamed_by_its_own_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"page {i}" for i in range(500)]
    rows = datasets.Dataset.from_dict({"text": [*texts, "  "], "url": ["u"] * 501}).to_iterable_dataset(num_shards=3)
    requested = []

    def load(*names: str, **options: object) -> object:
        requested.append((*names, options))
        return rows

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = open_source("fineweb")
    found = read(source)
    assert source.parts == 3
    assert requested == [("HuggingFaceFW/fineweb", "sample-10BT", {"split": "train", "streaming": True})]
    assert [text for _, text in found] == [f"{text}\n\n" for text in texts]
    assert {half for half, _ in found} == {"train", "held_out"}


def test_local_tables_are_read_a_file_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for name, texts in (("b", ["three"]), ("a", ["one", "two"])):
        datasets.Dataset.from_dict({"text": texts}).to_parquet(tmp_path / f"{name}.parquet")
    folder = open_source(str(tmp_path))
    assert folder.parts == 2
    assert [text for _, text in read(folder)] == ["one\n\n", "two\n\n", "three\n\n"]
    assert [text for _, text in read(open_source(str(tmp_path / "b.parquet")))] == ["three\n\n"]
    datasets.Dataset.from_dict({"content": ["no"]}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet has the columns \['content'\]; expected a column \"text\""):
        read(open_source(str(tmp_path)))
    assert open_source(str(tmp_path)).digest != folder.digest


def test_a_text_of_the_hub_without_its_library_or_a_connection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: str, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    for name in ("wikitext103", "fineweb"):
        with pytest.raises(InputError, match=rf"{name}' is not in the cache .*\(ConnectionError: no route\)\. Load"):
            read(open_source(name))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'loopverify\[wikitext\]'"):
        read(open_source("fineweb"))
