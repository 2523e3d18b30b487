"""Multiple-choice questions from a JSONL file: one JSON object per line.

    {"context": "The sky is", "choices": [" blue", " green"], "gold": 0, "task": "colors"}

Lists of token ids may stand for texts, and "task" may be omitted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopverify.errors import InputError

__all__ = ["Encode", "Question", "read_questions"]

Encode = Callable[[str], Sequence[int]]
"""text -> token ids. Context and choices are encoded separately, so that all choices have the same context."""

_KEYS = {"context", "choices", "gold"}
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Question:
    """A context, its possible continuations, and which of them is correct; in token ids."""

    context: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]
    gold: int
    """The index of the correct choice, from 0."""
    task: str = ""
    """The task, within which accuracies are averaged first ("macro")."""

    def __post_init__(self) -> None:
        if not self.context:
            raise InputError("the context has no tokens; expected at least one, from which the first is predicted")
        if len(self.choices) < 2:
            raise InputError(f"choices has {len(self.choices)} entries; expected at least two")
        for place, choice in enumerate(self.choices):
            if not choice:
                raise InputError(f"choice {place} has no tokens; expected at least one to score")
        if (least := min(map(min, (self.context, *self.choices)))) < 0:
            raise InputError(f"token id {least}; expected ids >= 0")
        if not 0 <= self.gold < len(self.choices):
            raise InputError(f"gold is {self.gold}; expected the index of a choice, 0..{len(self.choices) - 1}")


def read_questions(path: str | Path, encode: Encode | None = None) -> tuple[Question, ...]:
    """Read a JSONL file of questions; blank lines are skipped.

    Args:
        encode: text -> token ids; not needed where the file holds ids.

    Raises:
        InputError: the file cannot be read or has no questions, or lines are not questions; each such line is named
            with its number and the reason.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read questions from {path}: {error}") from error
    questions, problems = [], []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                questions.append(_question(line, encode))
            except InputError as error:
                problems.append(f"{path}:{number}: {error}")
    if problems:
        more = [f"... and {len(problems) - _SHOWN} more lines"] if len(problems) > _SHOWN else []
        raise InputError("\n".join([*problems[:_SHOWN], *more]))
    if not questions:
        raise InputError(f"{path} contains no questions; expected one JSON object per line")
    return tuple(questions)


def _question(line: str, encode: Encode | None) -> Question:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InputError(f"not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise InputError(f"a {type(entry).__name__}; expected an object with 'context', 'choices' and 'gold'")
    wrong = [f"{key!r} is missing" for key in sorted(_KEYS - entry.keys())]
    wrong += [f"{key!r} is unknown" for key in sorted(entry.keys() - _KEYS - {"task"})]
    if wrong:
        raise InputError(f"{', '.join(wrong)}; expected 'context', 'choices', 'gold' and, optionally, 'task'")
    choices, gold, task = entry["choices"], entry["gold"], entry.get("task", "")
    if not isinstance(choices, list):
        raise InputError(f"choices is {choices!r}; expected a list of texts or of lists of token ids")
    if not isinstance(gold, int) or isinstance(gold, bool):
        raise InputError(f"gold is {gold!r}; expected the index of the correct choice, an integer >= 0")
    if not isinstance(task, str):
        raise InputError(f"task is {task!r}; expected a name")
    context = _ids("context", entry["context"], encode)
    ids = tuple(_ids(f"choice {place}", choice, encode) for place, choice in enumerate(choices))
    return Question(context=context, choices=ids, gold=gold, task=task)


def _ids(name: str, value: object, encode: Encode | None) -> tuple[int, ...]:
    if isinstance(value, str):
        if encode is None:
            raise InputError(f"{name} is a text; expected token ids, or pass encode=, which turns texts into token ids")
        return tuple(int(token) for token in encode(value))
    if isinstance(value, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in value):
        return tuple(value)
    raise InputError(f"{name} is {value!r}; expected a text or a list of token ids")
