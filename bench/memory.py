"""Peak memory of one loss and its backward pass, in a process of its own: `python -m bench.memory ...`.

The figure is the largest resident set while it runs (Linux: VmHWM, set back right before) less the one before (VmRSS,
after the heap gave back what is free). It counts everything: tensors, the buffers of the linear-algebra library,
fragmentation. What exists before (states, head) is not in it; what is left after, the gradients of states and head, is,
for all forms alike. On CUDA it is the most that torch's allocator held, less what it held before.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bench.shapes import Wide
from bench.wide import FORMS, exits_of, forward_and_backward

__all__ = ["Resident", "peak_mib"]


def peak_mib(form: str, readout: str, wide: Wide, device: str) -> float:
    """MiB that the loss called `form` needs on top of what it is given, at most."""
    command = [sys.executable, "-m", "bench.memory", form, readout, json.dumps(asdict(wide)), device]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _measure(form: str, readout: str, wide: Wide, device: str) -> float:
    torch.set_num_threads(1)
    # The libraries' own memory, once, at a size that does not count.
    small = replace(wide, tokens=8, vocab_size=32, exits=1)
    forward_and_backward(form, exits_of(small, readout, device))()
    exits = exits_of(wide, readout, device)
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        forward_and_backward(form, exits)()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with Resident() as resident:
        forward_and_backward(form, exits)()
    return resident.growth


class Resident:
    """The resident set of this process during a block, MiB."""

    peak: float
    """The largest it was."""
    growth: float
    """By how much that is more than it was before."""

    def __enter__(self) -> Resident:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _status("VmRSS")
        return self

    def __exit__(self, *error: object) -> None:
        self.peak = _status("VmHWM")
        self.growth = self.peak - self._before


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 2**10  # from kB


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="MiB that one loss needs at most.")
    parser.add_argument("form", choices=list(FORMS))
    parser.add_argument("readout")
    parser.add_argument("wide", type=lambda text: Wide(**json.loads(text)))
    parser.add_argument("device")
    arguments = parser.parse_args()
    print(_measure(arguments.form, arguments.readout, arguments.wide, arguments.device))  # noqa: T201 - its result
