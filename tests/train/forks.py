"""A process that trains one run in children of its own, and kills them at the given moments.

torch is imported once; each child is a fork. Commands come as lines of JSON on stdin, answers on stdout:
{"store", "kill_at": step, "after": seconds, "every": seconds} (but for the store, each may be left out) ->
{"status": exit status or -signal, "said": [...]}.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).parents[2]


class Forks:
    """The other side: starts the process and asks it."""

    def __init__(self, text: Path | None, **preset: object) -> None:
        """The run is on `text`, or on a task; `preset` holds fields of its preset."""
        arguments = json.dumps({"text": text and str(text), "preset": preset})
        command = [sys.executable, "-m", "tests.train.forks", arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def train(self, store: Path, **how: object) -> dict[str, Any]:
        """Train the run in a child; returns how it ended and what it said."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"store": str(store), **how}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _serve(text: str | None, preset: dict[str, Any]) -> None:
    from loopverify.errors import LoopverifyError
    from tests.train.micro import micro, micro_hops
    from train.engine.checkpointing import CheckpointPolicy
    from train.engine.open import open_examples
    from train.launch.run import ensure
    from train.specification import RunSpec
    from train.store import RunStore

    shape = micro_hops(**preset) if text is None else micro(Path(text), **preset)
    spec = RunSpec(preset=shape, loss="per_loop", readout="rmsnorm")

    def child(runs: RunStore, how: dict[str, Any], log: IO[str]) -> int:
        say = lambda text: log.write(f"{text}\n") and log.flush()  # noqa: E731
        try:
            ensure(spec, runs, lambda event: None, say, policy=CheckpointPolicy(every=how.get("every", 0.0)))
        except LoopverifyError as error:
            say(str(error))
            return 2
        return 0

    for line in sys.stdin:
        how = json.loads(line)
        runs = RunStore(how["store"])
        partial = runs.root / "partial" / runs.key(spec.determinants(open_examples(spec, runs)))
        with tempfile.TemporaryFile("w+") as log:
            pid = os.fork()
            if pid == 0:
                os._exit(child(runs, how, log))
            status = _watch(pid, partial, how)
            log.seek(0)
            sys.stdout.write(json.dumps({"status": status, "said": log.read().splitlines()}) + "\n")
            sys.stdout.flush()


def _watch(pid: int, partial: Path, how: dict[str, Any]) -> int:
    """Wait for a child, and kill it a moment after it has reached a step, if it is to be killed."""
    while how.get("kill_at") is not None and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if any(int(path.name.split("-")[1]) >= how["kill_at"] for path in partial.glob("step-*")):
            time.sleep(how["after"])
            os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    _serve(given["text"], given["preset"])
