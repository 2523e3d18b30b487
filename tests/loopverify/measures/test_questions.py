"""Multiple-choice files: what is read from them, and the messages about invalid lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopverify.errors import InputError
from loopverify.measures.questions import Question, read_questions

GOOD = {"context": "ab", "choices": ["c", "da"], "gold": 1, "task": "letters"}


def encode(text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


def write(folder: Path, *lines: object) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines), encoding="utf-8")
    return path


def test_texts_are_encoded_apart_and_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    ids = {"context": [7], "choices": [[1, 2], [3]], "gold": 0}
    assert read_questions(write(tmp_path, GOOD, "", ids, "  "), encode) == (
        Question(context=(0, 1), choices=((2,), (3, 0)), gold=1, task="letters"),
        Question(context=(7,), choices=((1, 2), (3,)), gold=0),
    )


def test_a_line_may_hold_any_character_of_its_text(tmp_path: Path) -> None:
    # A line separator of Unicode is part of a text, not the end of a line.
    line = json.dumps({"context": "a\u2028b", "choices": ["c", "d"], "gold": 0}, ensure_ascii=False)
    (question,) = read_questions(write(tmp_path, line), lambda text: [len(text)])
    assert question.context == (3,)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'context'", "not JSON: Expecting property name"),
        ("[1, 2]", "a list; expected an object with 'context', 'choices' and 'gold'"),
        (
            {"context": "a", "label": 1},
            "'choices' is missing, 'gold' is missing, 'label' is unknown; expected 'context', ",
        ),
        (GOOD | {"context": 3}, "context is 3; expected a text or a list of token ids"),
        (GOOD | {"context": [1, True]}, r"context is \[1, True\]; expected a text or a list of token ids"),
        (GOOD | {"context": ""}, "the context has no tokens; expected at least one, from which the first is predicted"),
        (GOOD | {"context": [1, -100]}, "token id -100; expected ids >= 0"),
        (GOOD | {"choices": "ab"}, "choices is 'ab'; expected a list of texts or of lists of token ids"),
        (GOOD | {"choices": ["a"], "gold": 0}, "choices has 1 entries; expected at least two"),
        (GOOD | {"choices": ["a", ""]}, "choice 1 has no tokens; expected at least one to score"),
        (GOOD | {"choices": ["a", None]}, "choice 1 is None; expected a text or a list of token ids"),
        (GOOD | {"gold": 2}, r"gold is 2; expected the index of a choice, 0\.\.1"),
        (GOOD | {"gold": -1}, "gold is -1; expected the index of a choice"),
        (GOOD | {"gold": "b"}, "gold is 'b'; expected the index of the correct choice, an integer >= 0"),
        (GOOD | {"gold": True}, "gold is True; expected the index of the correct choice"),
        (GOOD | {"task": 7}, "task is 7; expected a name"),
    ],
)
def test_a_bad_line_is_named_with_its_reason(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(InputError, match=rf"questions\.jsonl:3: {message}"):
        read_questions(write(tmp_path, GOOD, "", line, GOOD), encode)


def test_all_invalid_lines_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_questions(write(tmp_path, "1", GOOD, *["2"] * 7), encode)
    messages = str(caught.value).split("\n")
    assert [line.split(":")[-2] for line in messages[:5]] == ["1", "3", "4", "5", "6"]
    assert messages[5:] == ["... and 3 more lines"]


def test_texts_need_an_encoder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r":1: context is a text; expected token ids, or pass encode="):
        read_questions(write(tmp_path, GOOD))


def test_files_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"questions\.jsonl contains no questions; expected one JSON object per line"):
        read_questions(write(tmp_path, "", " "))
    with pytest.raises(InputError, match=r"cannot read questions from .*nowhere.jsonl: .*No such file"):
        read_questions(tmp_path / "nowhere.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"context": "\xe9"}')
    with pytest.raises(InputError, match=r"cannot read questions from .*latin.jsonl: 'utf-8' codec can't decode"):
        read_questions(tmp_path / "latin.jsonl")
