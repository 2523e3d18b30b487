"""The HTML page: one file, complete, escaped, and honest about what was contradicted."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

import pytest

from loopverify.claims import CLAIMS
from loopverify.errors import MissingDependencyError
from loopverify.report import build
from tests.loopverify.report.sample import TABLE_2, sample_histories, sample_runs

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Collects text and attributes, and checks that tags nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def page() -> str:
    runs = sample_runs()
    return build(runs, TABLE_2, histories=sample_histories(runs), facts={"wall time": "60 s"}).to_html()


def test_every_claim_is_shown_with_its_verdict(page: str) -> None:
    text = " ".join(Reader(page).text)
    for claim in TABLE_2:
        assert claim.sentence in text
        assert claim.id in text
    for shown in ("×891", "337…407", "≥ ×30", "9 of 10 rank tests hold", "arXiv 2606.24898", "wall time", "60 s"):
        assert shown in text
    assert page.count("✓ held") == 1 + 21  # its tile and its rows


def test_a_contradicted_claim_comes_first_and_is_marked(page: str) -> None:
    sentence = CLAIMS["P1.T2.tens.per_loop.penalty"].sentence
    assert page.index(sentence) < page.index('<h2 id="claims">')
    row = page[page.index('<tr id="P1.T2.tens.per_loop.penalty"') :]
    assert row.startswith('<tr id="P1.T2.tens.per_loop.penalty" class="contradicted">')
    assert "✗ contradicted" in row[: row.index("</tr>")]
    assert "seeds within the bound: 0 of 3" in row[: row.index("</tr>")]


def test_the_measured_table_is_next_to_the_paper_s(page: str) -> None:
    text = Reader(page).text
    assert "3,577 ± 170" in text  # 3407 times 1, 1.05 and 1.1
    assert "39,207 ± 19,891, 6.04" in text
    assert "paper 129M: ‖H_4‖₂, PPL" in text


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    links = [value for name, value in Reader(page).attributes if name in ("href", "src", "xlink:href", "srcset")]
    assert links
    assert all(str(link).startswith("#") for link in links)
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page


def test_links_lead_somewhere_and_ids_are_unique(page: str) -> None:
    attributes = Reader(page).attributes
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {str(value)[1:] for name, value in attributes if name.endswith("href")} <= set(map(str, ids))


def test_it_reads_in_light_dark_and_print(page: str) -> None:
    for rule in ("prefers-color-scheme: dark", "@media print", 'name="color-scheme" content="light dark"'):
        assert rule in page


def test_names_given_by_users_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    made = build(sample_runs(1), facts={evil: evil}, title=evil).to_html()
    assert "<script" not in made
    assert made.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 4


def test_a_report_without_runs_has_a_page() -> None:
    made = build([]).to_html()
    text = " ".join(Reader(made).text)
    assert "– not run" in text
    assert "missing: runs of per_loop/rmsnorm, runs of per_loop/raw" in text
    assert not {"measured", "figures", "facts"} & {value for name, value in Reader(made).attributes if name == "id"}


def test_a_single_seed_says_effect_only() -> None:
    text = " ".join(Reader(build(sample_runs(1)).to_html()).text)
    assert "effect only, n = 1 and 1: no test can reach alpha = 0.05; use --seeds 3" in text
    assert "Holm" not in text


def test_the_same_record_makes_the_same_page(page: str) -> None:
    runs = sample_runs()
    assert build(runs, TABLE_2, histories=sample_histories(runs), facts={"wall time": "60 s"}).to_html() == page


@pytest.mark.parametrize("library", ["jinja2", "matplotlib"])
def test_without_its_libraries(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError, match=rf"{library} is not installed.*'loopverify\[report\]'"):
        build(sample_runs(1)).to_html()
