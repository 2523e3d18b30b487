"""The paper's tokenizer: matches of a regular expression, white space included, and a vocabulary by frequency."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopverify.errors import InputError

__all__ = ["PATTERN", "RULES", "UNKNOWN", "Tokenizer", "count_dropped", "find_tokens"]

PATTERN = r"\s+|[A-Za-z0-9_]+|[^\w\s]"
"""The paper's expression (Sharma & Vu 2026, section 3): runs of white space, runs of ASCII word characters, and
single other characters. Letters and digits outside ASCII ('é', '²') match none of the three and are dropped."""
RULES = {"pattern": PATTERN, "unicode": unicodedata.unidata_version}
"""What determines the tokens of a text, apart from code; Python's Unicode tables define which characters are
letters."""
UNKNOWN = "<unk>"
"""The text of token 0. It equals no token of a text: the pattern never matches these five characters as one."""

_FORMAT = 1
_FIND = re.compile(PATTERN).findall
_DROPPED = re.compile(r"[^\W\x00-\x7f]").findall  # word characters outside ASCII


def find_tokens(text: str) -> list[str]:
    """The tokens of a text, in order; joined, they are the text without its dropped characters."""
    found: list[str] = _FIND(text)
    return found


def count_dropped(text: str) -> int:
    """Number of characters of a text that belong to no token: letters and digits outside ASCII."""
    return 0 if text.isascii() else len(_DROPPED(text))


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary over `PATTERN`: token ids 0..V-1, of which 0 is `<unk>`."""

    tokens: tuple[str, ...]
    """The text of each id: id 0 is `UNKNOWN`, the others are sorted from frequent to rare."""

    def __post_init__(self) -> None:
        if len(self.tokens) < 2 or self.tokens[0] != UNKNOWN or len(set(self.tokens)) != len(self.tokens):
            raise InputError(
                f"a vocabulary of {len(self.tokens)} tokens ({len(set(self.tokens))} distinct) that begins with "
                f"{self.tokens[:1]}; expected {UNKNOWN!r} first, then at least one token, all of them distinct"
            )

    @classmethod
    def fit(cls, texts: Iterable[str], *, vocab_max: int, min_freq: int) -> Tokenizer:
        """The tokenizer fit to some texts.

        Args:
            vocab_max: largest number of ids, `<unk>` included.
            min_freq: smallest number of occurrences for which a token gets an id. Ids follow frequency, and code point
                order among equally frequent tokens, so that the result is deterministic.

        Raises:
            InputError: vocab_max < 2, min_freq < 1, or no token is frequent enough.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(find_tokens(text))
        return cls.of_counts(counts, vocab_max=vocab_max, min_freq=min_freq)

    @classmethod
    def of_counts(cls, counts: Mapping[str, int], *, vocab_max: int, min_freq: int) -> Tokenizer:
        """As `fit`, from the number of occurrences of each token."""
        check_size(vocab_max=vocab_max, min_freq=min_freq)
        if not counts:
            raise InputError("the text has no token to fit a vocabulary to; give a text with words")
        frequent = sorted((-n, token) for token, n in counts.items() if n >= min_freq)
        if not frequent:
            raise InputError(
                f"min_freq is {min_freq}, but the most frequent token of the text occurs {max(counts.values())} "
                "times; lower min_freq or give more text"
            )
        return cls((UNKNOWN, *(token for _, token in frequent[: vocab_max - 1])))

    @property
    def vocab_size(self) -> int:
        """V, `<unk>` included."""
        return len(self.tokens)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the pattern and the vocabulary."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def encode(self, text: str) -> NDArray[np.int64]:
        """Token ids (T,) of a text; tokens outside the vocabulary become 0."""
        return self.ids_of(find_tokens(text))

    def ids_of(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """The id (N,) of each of N tokens, 0 for those outside the vocabulary."""
        ids = self._ids
        return np.fromiter((ids.get(token, 0) for token in tokens), dtype=np.int64, count=len(tokens))

    def decode(self, ids: ArrayLike) -> str:
        """The text of token ids (T,): the encoded text, except for dropped characters and `<unk>`s.

        Raises:
            InputError: ids are not a row of integers in 0..V-1.
        """
        array = np.asarray(ids)
        if array.size == 0:
            return ""
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise InputError(f"ids are {array.dtype} of shape {array.shape}; expected one row of integers")
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= self.vocab_size:
            raise InputError(f"ids span {low}..{high}; expected 0..{self.vocab_size - 1} for this vocabulary")
        return "".join(self.tokens[i] for i in array.tolist())

    def to_json(self) -> str:
        """The tokenizer as one JSON object."""
        return json.dumps({"format": _FORMAT, "pattern": PATTERN, "tokens": self.tokens})

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """The tokenizer that `to_json` wrote.

        Raises:
            InputError: not the JSON of a tokenizer, or it has another pattern or format.
        """
        try:
            record = json.loads(text)
            form, pattern, tokens = record["format"], record["pattern"], tuple(record["tokens"])
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"not the JSON of a tokenizer ({type(error).__name__}: {error})") from error
        if (form, pattern) != (_FORMAT, PATTERN):
            raise InputError(
                f"a tokenizer of format {form!r} with pattern {pattern!r}; expected {_FORMAT} with {PATTERN!r}. "
                "It was written by another version: fit it again"
            )
        return cls(tokens)

    def save(self, path: Path) -> None:
        """Write the tokenizer as JSON."""
        path.write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """The tokenizer that `save` wrote.

        Raises:
            InputError: as `from_json`.
        """
        return cls.from_json(path.read_text(encoding="utf-8"))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}


def check_size(*, vocab_max: int, min_freq: int) -> None:
    """Raise an InputError unless vocab_max is an integer >= 2 and min_freq one >= 1."""
    for name, value, least in (("vocab_max", vocab_max, 2), ("min_freq", min_freq, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name} is {value!r}; expected an integer >= {least}")
