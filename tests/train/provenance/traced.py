"""Train, evaluate and measure a run of every kind of data, and print the modules of which functions were executed.

The arguments: a text, and a folder for the store. Functions only: what a module does when it is imported is another
test's matter.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import FrameType

import loopverify
import train
from loopverify.claims import CLAIMS
from tests.train.micro import micro, micro_hops
from tests.train.study.test_measure import ONE_OF_EACH
from train.engine.checkpointing import CheckpointPolicy
from train.launch.run import ensure
from train.specification import RunSpec
from train.store import RunStore
from train.study.measure import measured

FOLDERS = {str(Path(package.__file__ or "").parent): package.__name__ for package in (loopverify, train)}


def main(text: str, root: str) -> None:
    """Print the names of the modules as a JSON list."""
    assert CLAIMS  # everything that is imported late by others is there before functions count
    files: set[str] = set()

    def called(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # not the body of a module or a class
            files.add(frame.f_code.co_filename)

    store = RunStore(root)
    specs = [
        RunSpec(preset=micro(Path(text), dropout=0.1), loss="exit_weighted+penalty+latent", readout="rmsnorm"),
        RunSpec(
            preset=replace(micro(Path(text)), steps=None, epochs=1, min_lr=1e-4, batch=8),
            loss="terminal",
            readout="raw",
        ),
        RunSpec(preset=micro_hops(), loss="per_loop", readout="tapered", recurrence="inter_loop_norm"),
    ]
    threading.setprofile(called)
    sys.setprofile(called)
    for spec in specs:
        stored = ensure(spec, store, lambda event: None, lambda said: None, policy=CheckpointPolicy(every=0))
        measured({spec: stored}, {spec.condition: ONE_OF_EACH}, store, lambda said: None)
    sys.setprofile(None)
    print(json.dumps(sorted({name for file in files if (name := module_of(file)) is not None})))  # noqa: T201


def module_of(file: str) -> str | None:
    """The name of a module of the two packages, by its file."""
    for folder, package in FOLDERS.items():
        if file.startswith(f"{folder}/"):
            parts = Path(file).relative_to(Path(folder).parent).with_suffix("").parts
            return ".".join(parts).removesuffix(".__init__") or package
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
