"""Damage to the files of a sealed folder: flipped bits and lost or added tails in every region of every file."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

FLIPS = 12
"""Bits flipped in each region, each in a trial of its own."""


def regions(path: Path) -> dict[str, range]:
    """The byte ranges of a file that mean different things."""
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        data = 8 + int.from_bytes(content[:8], "little")
        return {"header length": range(8), "header": range(8, data), "tensors": range(data, len(content))}
    if path.name == "manifest.json":
        fields = list(re.finditer(rb'^ "(\w+)":.*?(?=^ "|^\})', content, flags=re.MULTILINE | re.DOTALL))
        return {f"field {field[1].decode()}": range(*field.span()) for field in fields}
    return {"text": range(len(content))}


def damaged(folder: Path) -> Iterator[tuple[str, str]]:
    """Every trial as (file, what happened to it), the folder being so damaged while the trial is looked at."""
    draw = random.Random(0)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole, name = path.read_bytes(), path.relative_to(folder).as_posix()
        for what, content in _trials(whole, regions(path), draw):
            path.write_bytes(content)
            yield name, what
        path.write_bytes(whole)


def _trials(whole: bytes, parts: dict[str, range], draw: random.Random) -> Iterator[tuple[str, bytes]]:
    assert parts
    for region, places in parts.items():
        for place in draw.sample(places, min(FLIPS, len(places))):
            flipped = whole[place] ^ 1 << draw.randrange(8)
            yield f"{region}: bit flipped in byte {place}", whole[:place] + bytes([flipped]) + whole[place + 1 :]
        for cut in (places.start, (places.start + places.stop) // 2, places.stop - 1):
            yield f"{region}: cut at byte {cut}", whole[:cut]
        zeroed = bytes(len(places))
        if whole[places.start : places.stop] != zeroed:
            yield f"{region}: zeroed", whole[: places.start] + zeroed + whole[places.stop :]
    yield "a byte added", whole + b"\n"
