"""The paper's tokenizer: what it finds and drops, how a vocabulary is chosen, and that it goes through JSON."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopverify.errors import InputError
from train.data.tokenizer import PATTERN, UNKNOWN, Tokenizer, count_dropped, find_tokens

ABC = "b b a a c"  # four spaces, two of b and of a, one c


def test_the_pattern_finds_white_space_words_and_single_characters() -> None:
    assert find_tokens("Hello,  world_1!\n\t(ok)") == ["Hello", ",", "  ", "world_1", "!", "\n\t", "(", "ok", ")"]
    assert find_tokens("") == []


@pytest.mark.parametrize(
    ("text", "tokens", "dropped"),
    [
        ("café", ["caf"], 1),
        ("São Tomé", ["S", "o", " ", "Tom"], 2),
        ("10² m", ["10", " ", "m"], 1),
        ("日本", [], 2),
        ("5 € – “so”", ["5", " ", "€", " ", "–", " ", "“", "so", "”"], 0),  # no word characters: each its own token
        ("a\u00a0b", ["a", "\u00a0", "b"], 0),  # a no-break space is white space
    ],
)
def test_letters_and_digits_outside_ascii_are_dropped_and_counted(text: str, tokens: list[str], dropped: int) -> None:
    assert find_tokens(text) == tokens
    assert count_dropped(text) == dropped


@given(st.text())
def test_every_character_is_in_a_token_or_counted_as_dropped(text: str) -> None:
    kept = "".join(c for c in text if c.isascii() or not c.isalnum())
    assert "".join(find_tokens(text)) == kept
    assert count_dropped(text) == len(text) - len(kept)


def test_the_vocabulary_goes_by_frequency_then_by_text() -> None:
    assert Tokenizer.fit([ABC], vocab_max=10, min_freq=1).tokens == (UNKNOWN, " ", "a", "b", "c")
    assert Tokenizer.fit([ABC], vocab_max=10, min_freq=2).tokens == (UNKNOWN, " ", "a", "b")
    assert Tokenizer.fit([ABC], vocab_max=3, min_freq=1).tokens == (UNKNOWN, " ", "a")
    assert Tokenizer.fit([ABC], vocab_max=2, min_freq=4).tokens == (UNKNOWN, " ")


@given(st.lists(st.text(alphabet="abc é.", max_size=20), min_size=1), st.randoms())
def test_the_order_of_the_texts_does_not_matter(texts: list[str], random) -> None:  # type: ignore[no-untyped-def]
    texts = [*texts, "a"]
    shuffled = random.sample(texts, len(texts))
    first, second = (Tokenizer.fit(some, vocab_max=4, min_freq=1) for some in (texts, shuffled))
    assert first == second
    assert first.digest == second.digest


def test_encoding_by_hand() -> None:
    tokenizer = Tokenizer.fit([ABC], vocab_max=10, min_freq=1)
    ids = tokenizer.encode("a c\nbé")
    assert ids.dtype == np.int64
    assert ids.tolist() == [2, 1, 4, 0, 3]
    assert tokenizer.decode(ids) == "a c<unk>b"
    assert tokenizer.encode("").tolist() == []
    assert tokenizer.decode([]) == ""
    assert tokenizer.vocab_size == 5


@given(st.text(min_size=1).filter(find_tokens))
def test_decoding_gives_the_text_without_what_is_dropped(text: str) -> None:
    tokenizer = Tokenizer.fit([text], vocab_max=10_000, min_freq=1)
    assert tokenizer.decode(tokenizer.encode(text)) == "".join(c for c in text if c.isascii() or not c.isalnum())


@pytest.mark.parametrize(
    ("texts", "sizes", "words"),
    [
        ([ABC], {"vocab_max": 1, "min_freq": 1}, "vocab_max is 1; expected an integer >= 2"),
        ([ABC], {"vocab_max": 2.0, "min_freq": 1}, "vocab_max is 2.0; expected an integer >= 2"),
        ([ABC], {"vocab_max": 9, "min_freq": 0}, "min_freq is 0; expected an integer >= 1"),
        (
            [ABC],
            {"vocab_max": 9, "min_freq": 5},
            "min_freq is 5, but the most frequent token of the text occurs 4 times",
        ),
        ([], {"vocab_max": 9, "min_freq": 1}, "the text has no token"),
        (["", "日本"], {"vocab_max": 9, "min_freq": 1}, "the text has no token"),
    ],
)
def test_what_cannot_be_fit_is_rejected(texts: list[str], sizes: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        Tokenizer.fit(texts, **sizes)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([0, 5], "ids span 0..5; expected 0..4"),
        ([-1], "ids span -1..-1; expected 0..4"),
        ([[1, 2]], "ids are int64 of shape (1, 2); expected one row of integers"),
        ([0.5], "ids are float64 of shape (1,)"),
    ],
)
def test_ids_that_mean_nothing_are_rejected(ids: object, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        Tokenizer.fit([ABC], vocab_max=10, min_freq=1).decode(ids)  # type: ignore[arg-type]


def test_a_vocabulary_of_the_wrong_form_is_rejected() -> None:
    for tokens in ((UNKNOWN,), ("a", "b"), (UNKNOWN, "a", "a")):
        with pytest.raises(
            InputError, match=f"expected '{UNKNOWN}' first, then at least one token, all of them distinct"
        ):
            Tokenizer(tokens)


def test_saving_and_loading_gives_the_same_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.fit(['a "quoted"\n\u2028 text…'], vocab_max=10, min_freq=1)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded == tokenizer
    assert loaded.digest == tokenizer.digest
    assert loaded.digest != Tokenizer.fit([ABC], vocab_max=10, min_freq=1).digest


def test_json_of_something_else_is_rejected() -> None:
    for text in ("{", "[]", "{}", '{"format": 1}', '{"format": 1, "pattern": "x", "tokens": 3}'):
        with pytest.raises(InputError, match="not the JSON of a tokenizer"):
            Tokenizer.from_json(text)
    record = json.loads(Tokenizer.fit([ABC], vocab_max=10, min_freq=1).to_json())
    assert record["pattern"] == PATTERN
    for change in ({"pattern": r"\w+"}, {"format": 2}):
        with pytest.raises(InputError, match="It was written by another version: fit it again"):
            Tokenizer.from_json(json.dumps({**record, **change}))


def test_encoding_costs_little_more_than_the_regular_expression() -> None:
    text = "The state of the loop grows, and no loss sees it. " * 4000
    tokenizer = Tokenizer.fit([text], vocab_max=100, min_freq=1)
    find = re.compile(PATTERN).findall
    bare, whole = (min(_seconds(function, text) for _ in range(5)) for function in (find, tokenizer.encode))
    assert whole < 8 * bare


def _seconds(function, text: str) -> float:  # type: ignore[no-untyped-def]
    begun = time.perf_counter()
    function(text)
    return time.perf_counter() - begun
