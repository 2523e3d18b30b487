"""Sections of pages: what stands between `<!-- name -->` and `<!-- end of name -->` is written by the command.

A section is made from its source (the registry of checks, stored results, ...), so that a table is written in one place
and never by hand; everything outside the markers is prose and is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from loopverify.errors import InputError, unknown

__all__ = ["Section", "pages", "rewritten", "stale_sections"]

Section = Callable[[Path], str]
"""From the root of the repository, where results are stored, to the Markdown between the markers."""

_SECTION = re.compile(r"^<!-- (?P<name>[a-z0-9-]+) -->\n(?P<text>.*?)^<!-- end of (?P=name) -->$", re.M | re.S)
_MARKER = re.compile(r"^<!-- (?:end of )?([a-z0-9-]+) -->$", re.M)


def pages(root: Path) -> list[Path]:
    """The pages that may hold sections."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md")), root / "bench" / "README.md"]


def rewritten(root: Path, sections: Mapping[str, Section]) -> dict[Path, str]:
    """Every page that has sections, with all of them made again.

    Raises:
        InputError: a marker without its counterpart, an unknown section, one on no page or in two places.
    """
    found: dict[str, Path] = {}
    texts = {}
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        names = [match["name"] for match in _SECTION.finditer(text)]
        if sorted(_MARKER.findall(text)) != sorted([*names, *names]):
            raise InputError(f"{page} has a marker without its counterpart; expected <!-- x --> ... <!-- end of x -->")
        for name in names:
            if name not in sections:
                raise unknown("section", name, sections)
            if name in found:
                raise InputError(f"section {name!r} is in {found[name]} and in {page}; expected one place")
            found[name] = page
        if names:
            texts[page] = _SECTION.sub(lambda match: _section(match["name"], sections, root), text)
    if missing := sorted(sections.keys() - found.keys()):
        raise InputError(f"no page has the sections {', '.join(missing)}; expected the markers of each on one page")
    return texts


def stale_sections(root: Path, texts: Mapping[Path, str]) -> list[str]:
    """The sections of pages that differ from what `rewritten` makes of them, as 'docs/checks.md: checks'."""
    stale = []
    for page, new in texts.items():
        old = page.read_text(encoding="utf-8")
        for before, after in zip(_SECTION.finditer(old), _SECTION.finditer(new), strict=True):
            if before["text"] != after["text"]:
                stale.append(f"{page.relative_to(root)}: {before['name']}")
    return stale


def _section(name: str, sections: Mapping[str, Section], root: Path) -> str:
    return f"<!-- {name} -->\n{sections[name](root).rstrip()}\n<!-- end of {name} -->"
