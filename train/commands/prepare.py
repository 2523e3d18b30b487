"""`python -m train data --preset 44m`: tokenize the text of a preset beforehand, with every core."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from loopverify.cli.folder import runs_folder
from loopverify.errors import InputError, LoopverifyError
from train.data import TaskSpec, load_corpus
from train.specification import preset

__all__ = ["main"]

THERE, WRONG_USE = 0, 2


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Tokenize the text of a preset into the store; killed, it goes on from the parts that were finished."""

    preset: str = "tiny"
    """tiny, small, 44m, 129m or 1.4b: it says the text and the size of the vocabulary."""
    data: str | None = None
    """A named text, a file or a folder; the preset's own when omitted."""
    runs: Annotated[str, tyro.conf.arg(metavar="DIR")] = "runs"
    """Folder of the run store, of which the tokens lie in data/."""
    workers: int | None = None
    """Processes; one a core when omitted. The tokens are the same."""


def main(argv: Sequence[str]) -> int:
    """Exit status 0: the tokens are there; 2: wrong use, such as a text that cannot be read."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m train data")
    console = Console(stderr=True, emoji=False)
    say: Callable[[str], None] = lambda text: console.print(text, markup=False, soft_wrap=True)  # noqa: E731
    begun = time.perf_counter()
    try:
        if arguments.workers is not None and arguments.workers < 1:
            raise InputError(f"workers is {arguments.workers}; expected an integer >= 1")
        spec = preset(arguments.preset, source=arguments.data).data
        if isinstance(spec, TaskSpec):
            raise InputError(
                f"preset {arguments.preset!r} has no text to tokenize: its examples are drawn from the task "
                f"{spec.name} in training; expected a preset on text"
            )
        corpus = load_corpus(spec, runs_folder(arguments.runs) / "data", workers=arguments.workers, say=say)
    except LoopverifyError as error:
        say(f"error: {error}")
        return WRONG_USE
    say(
        f"{corpus.name}: {len(corpus.train):,} training and {len(corpus.held_out):,} held-out tokens of "
        f"{corpus.vocab_size:,}, {corpus.characters:,} characters ({time.perf_counter() - begun:.0f} s)"
    )
    return THERE
