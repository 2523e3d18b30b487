"""`python -m train data --preset 44m`: tokenize the text of a preset beforehand, with every core."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from loopverify.cli.folder import runs_folder
from loopverify.errors import InputError
from train.commands import DONE
from train.data import TaskSpec, load_corpus
from train.launch.watch import printer
from train.specification import preset

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Tokenize the text of a preset into the store; after a kill, finished parts are not tokenized again."""

    preset: str = "tiny"
    """tiny, small, 44m, 129m or 1.4b: determines the text and the size of the vocabulary."""
    data: str | None = None
    """A named text, a file or a folder; the preset's own when omitted."""
    runs: Annotated[str, tyro.conf.arg(metavar="DIR")] = "runs"
    """Folder of the run store; tokens are stored in its folder data/."""
    workers: int | None = None
    """Processes; one per core when omitted. The tokens do not depend on it."""


def main(argv: Sequence[str], console: Console) -> int:
    """Returns exit status 0: the tokens are in the store."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m train data")
    say = printer(console)
    begun = time.perf_counter()
    if arguments.workers is not None and arguments.workers < 1:
        raise InputError(f"workers is {arguments.workers}; expected an integer >= 1")
    spec = preset(arguments.preset, source=arguments.data).data
    if isinstance(spec, TaskSpec):
        raise InputError(
            f"preset {arguments.preset!r} has no text to tokenize: its examples are drawn from the task "
            f"{spec.name} in training; expected a preset on text"
        )
    corpus = load_corpus(spec, runs_folder(arguments.runs) / "data", workers=arguments.workers, say=say)
    say(
        f"{corpus.name}: {len(corpus.train):,} training and {len(corpus.held_out):,} held-out tokens of "
        f"{corpus.vocab_size:,}, {corpus.characters:,} characters ({time.perf_counter() - begun:.0f} s)"
    )
    return DONE
