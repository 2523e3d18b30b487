"""Two ways to train several small models faster than one after another, as the seven conditions of Table 2 are.

Stacked: the parameters of several members in one tensor each, one step for all (torch.func). Side by side: processes of
one thread, as `train.launch.fleet` starts them; this module is such a process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.shapes import QUICK, SHAPES, Shape
from loopverify.models import LoopedTransformer

__all__ = ["processes", "seconds_in_turn", "seconds_side_by_side", "stacked_step"]


class _PerLoop(nn.Module):
    def __init__(self, model: LoopedTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        state, context = self.model.embed(tokens)
        loops, losses = self.model.config.trained_loops, []
        for loop in range(1, loops + 1):
            state = self.model.step(state, context, loop)
            logits = self.model.readout(state, context, loop, loops)
            losses.append(F.cross_entropy(logits.flatten(0, 1), targets.flatten()))
        return torch.stack(losses).mean()


def stacked_step(shape: Shape, members: int, device: str) -> Callable[[], None]:
    """One step of the per-loop loss for several members at once."""
    modules = [_PerLoop(shape.module("rmsnorm", device)) for _ in range(members)]
    parameters, buffers = torch.func.stack_module_state(modules)
    leaves = {name: parameter.detach().requires_grad_() for name, parameter in parameters.items()}
    optimizer = torch.optim.AdamW(list(leaves.values()), lr=shape.preset.lr, fused=True)

    def loss(parameters: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
        return torch.func.functional_call(modules[0], (parameters, buffers), (tokens, targets))

    batch = [part.expand(members, *part.shape) for part in shape.batch(device)]
    each = torch.vmap(loss)

    def step() -> None:
        optimizer.zero_grad()
        each(leaves, *batch).sum().backward()
        optimizer.step()

    return step


@contextmanager
def processes(count: int, steps: int, quick: bool) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that take `steps` steps of the harness on request."""
    command = [sys.executable, "-m", "bench.small_runs", str(steps), *(["quick"] if quick else [])]
    root = Path(__file__).parent.parent
    children = [
        subprocess.Popen(command, cwd=root, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(count)
    ]
    try:
        for child in children:
            _answer(child)
        yield children
    finally:
        for child in children:
            child.communicate()  # closes its input, which ends it


def seconds_side_by_side(children: list[subprocess.Popen[str]]) -> float:
    """Wall-clock seconds in which all take their steps in parallel."""
    begun = time.perf_counter()
    for child in children:
        _start(child)
    for child in children:
        _answer(child)
    return time.perf_counter() - begun


def seconds_in_turn(children: list[subprocess.Popen[str]]) -> float:
    """Wall-clock seconds in which all take their steps one after another."""
    return sum(seconds_side_by_side([child]) for child in children)


def _start(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def _answer(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    if not child.stdout.readline():
        raise RuntimeError(f"a process of bench.small_runs ended with status {child.wait()}")


def _serve(steps: int, shape: Shape) -> None:
    torch.set_num_threads(1)
    step = shape.step("per_loop", "rmsnorm", "cpu")
    step()
    print("ready", flush=True)  # noqa: T201 - its answer
    for _ in sys.stdin:
        for _ in range(steps):
            step()
        print("done", flush=True)  # noqa: T201 - its answer


if __name__ == "__main__":
    _serve(int(sys.argv[1]), QUICK if "quick" in sys.argv else SHAPES["tiny"])
