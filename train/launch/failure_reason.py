"""The reason why a run failed, extracted from the logs of its processes."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["reason"]

_OWN = ("error: ", "diverged: ")
"""Prefixes of the messages of `python -m train`."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)(: .*)?")
_LAUNCHERS = ("srun: ", "slurmstepd: ", "torch.distributed.elastic.")
"""Prefixes of the programs that start processes, which report failures as well, after the process itself."""


def reason(logs: Iterable[str]) -> str:
    """The line with the reason: the last message of the command, else the first exception, else that it was stopped,
    else the last line.

    If one of several processes fails, the others lose their connection to it or are stopped, and report that later.
    """
    stripped = (line.strip() for log in logs for line in log.splitlines())
    lines = [line for line in stripped if line and not line.startswith(_LAUNCHERS)]
    own = [line for line in lines if line.startswith(_OWN)]
    exceptions = [line for line in lines if _EXCEPTION.fullmatch(line)]
    stopped = [line for line in lines if line.startswith("stopped by ")]
    return (own[-1:] or exceptions[:1] or stopped[-1:] or lines[-1:] or ["no message"])[0]
