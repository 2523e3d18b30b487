"""Why a run failed, from what its processes wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["reason"]

_OWN = ("error: ", "diverged: ")
"""How `python -m train` says it."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)(: .*)?")
_LAUNCHERS = ("srun: ", "slurmstepd: ", "torch.distributed.elastic.")
"""Who starts processes tells of any that failed, too, and last."""


def reason(logs: Iterable[str]) -> str:
    """The line that says why: a process's own words, else the first exception, else that it was stopped, else the last.

    Where one process of several fails, the others lose their connection to it or are stopped, and say so after it.
    """
    told = (line.strip() for log in logs for line in log.splitlines())
    lines = [line for line in told if line and not line.startswith(_LAUNCHERS)]
    own = [line for line in lines if line.startswith(_OWN)]
    exceptions = [line for line in lines if _EXCEPTION.fullmatch(line)]
    stopped = [line for line in lines if line.startswith("stopped by ")]
    return (own[-1:] or exceptions[:1] or stopped[-1:] or lines[-1:] or ["no message"])[0]
