"""Pieces: the tokenized parts of a text, made independently by any number of processes, stored, and then joined.

The vocabulary of the whole text is unknown while a part is tokenized. A piece therefore numbers its tokens by its own
vocabulary, in order of first occurrence, and counts them. Joining adds up the counts, which determine the ids, and
renumbers the tokens of every piece.

    <piece>/train.bin, held_out.bin     uint32 numbers in the piece's own vocabulary
    <piece>/vocabulary.json             its tokens in the order of their numbers, with their counts in the training half
    <piece>/facts.json                  numbers of documents, tokens and characters
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from train.data.shards import map_ids
from train.data.sources import open_source
from train.data.text import Half, Source, Split
from train.data.tokenizer import RULES, Tokenizer, count_dropped, find_tokens
from train.provenance.closure import code_digest
from train.store import RunStore, Say, StoredRun

__all__ = ["FACTS", "HALVES", "make_pieces", "renumbered", "vocabulary"]

FACTS = "facts.json"
HALVES: tuple[Half, ...] = get_args(Half)

_CODE = code_digest(__name__)
_NUMBERS = np.dtype("<u4")
_VOCABULARY = "vocabulary.json"
_CHUNK = 2**24  # numbers per chunk
_log = logging.getLogger(__name__)


def make_pieces(
    source: str, text: Source, parts: int, store: RunStore, *, workers: int, say: Say = lambda message: None
) -> list[StoredRun]:
    """The pieces of the first `parts` parts of a text, in order; pieces that are in `store` are not made again.

    Args:
        source: the argument with which `open_source` returns `text`, for other processes.
        workers: number of processes, each of which reads one part at a time.

    Raises:
        InputError: a part cannot be read as text.
        StoreError: the store cannot be written.
    """
    keys = [_key(text, part) for part in range(parts)]
    found = [store.peek(key) for key in keys]
    missing = [part for part, piece in enumerate(found) if piece is None]
    if len(missing) < parts:
        say(f"{text.name}: {parts - len(missing)} of {parts} parts are there")
    for done, part in enumerate(_made(source, text, missing, store, workers), start=1):
        if parts > 1:
            say(f"{text.name}: part {part + 1} tokenized ({parts - len(missing) + done} of {parts})")
    pieces = [piece or store.get(key) for piece, key in zip(found, keys, strict=True)]
    assert None not in pieces
    return [piece for piece in pieces if piece is not None]


def vocabulary(pieces: Iterable[StoredRun], *, vocab_max: int, min_freq: int) -> Tokenizer:
    """The tokenizer fit to the training half of all pieces; see `Tokenizer.fit`."""
    counts: Counter[str] = Counter()
    for piece in pieces:
        own = piece.json(_VOCABULARY)
        counts.update({token: n for token, n in zip(own["tokens"], own["counts"], strict=True) if n})
    return Tokenizer.of_counts(counts, vocab_max=vocab_max, min_freq=min_freq)


def renumbered(piece: StoredRun, half: Half, tokenizer: Tokenizer) -> Iterator[NDArray[Any]]:
    """The tokens of one half of a piece as ids of a tokenizer, chunk by chunk."""
    ids = tokenizer.ids_of(piece.json(_VOCABULARY)["tokens"])
    numbers = map_ids(piece.path / f"{half}.bin", _NUMBERS)
    return (ids[numbers[first : first + _CHUNK]] for first in range(0, len(numbers), _CHUNK))


def _made(source: str, text: Source, missing: list[int], store: RunStore, workers: int) -> Iterator[int]:
    """Make the missing pieces; yields each part when it is finished."""
    if min(workers, len(missing)) <= 1:
        for part in missing:
            _make(text, part, store)
            yield part
        return
    # Spawned, because a process with threads cannot be forked safely.
    with ProcessPoolExecutor(min(workers, len(missing)), mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(_make_elsewhere, source, part, str(store.root)): part for part in missing}
        try:
            for future in as_completed(pending):
                future.result()
                yield pending[future]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _make_elsewhere(source: str, part: int, root: str) -> None:
    _make(_opened(source), part, RunStore(root, folder="pieces"))


_opened = lru_cache(maxsize=1)(open_source)  # once per process


def _make(text: Source, part: int, store: RunStore) -> None:
    key = _key(text, part)
    with store.lock(key):
        if store.find(key, _log.warning, "this part is tokenized again") is None:
            with store.create(key) as folder:
                (folder / FACTS).write_text(json.dumps(_tokenize(text.read(part), folder)), encoding="utf-8")


def _tokenize(documents: Iterable[Split], folder: Path) -> dict[str, Any]:
    """Write a piece; returns its facts."""
    numbers: dict[str, int] = {}
    counts: Counter[str] = Counter()
    facts: dict[str, Any] = {"characters": 0, "dropped": 0}
    facts |= {what: dict.fromkeys(HALVES, 0) for what in ("documents", "tokens")}
    files = {half: (folder / f"{half}.bin").open("wb") for half in HALVES}
    try:
        for half, text in documents:
            found = find_tokens(text)
            np.array([numbers.setdefault(token, len(numbers)) for token in found], _NUMBERS).tofile(files[half])
            if half == "train":
                counts.update(found)
            facts["characters"] += len(text)
            facts["dropped"] += count_dropped(text)
            facts["documents"][half] += 1
            facts["tokens"][half] += len(found)
    finally:
        for file in files.values():
            file.close()
    own = {"tokens": list(numbers), "counts": [counts[token] for token in numbers]}
    (folder / _VOCABULARY).write_text(json.dumps(own), encoding="utf-8")
    return facts


def _key(text: Source, part: int) -> Mapping[str, Any]:
    return {"text": text.digest, "part": part, **RULES, "code": _CODE}
