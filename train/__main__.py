"""`python -m train --preset tiny --loss per_loop --readout rmsnorm --seed 0`: train one run into the store.

`python -m train reproduce T12 --preset tiny` trains what a table of the paper needs and prints it beside the paper's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from loopverify.errors import LoopverifyError
from train import reproduce
from train.loop import DivergedError, Event
from train.presets import preset
from train.run import ensure, result, use_device
from train.spec import PAPER_PENALTY, RunSpec
from train.store import RunStore
from train.watch import RunBar

HELD, FELL_SHORT, WRONG_USE = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Train one looped transformer, or find it in the store."""

    preset: str = "tiny"
    """tiny (a minute on one CPU thread), small, 44m, 129m or 1.4b (the paper's)."""
    loss: str = "per_loop"
    """terminal, per_loop or exit_weighted, optionally with +penalty or +latent."""
    readout: str = "rmsnorm"
    """rmsnorm, raw, layernorm, final_only, tapered or dynamic_tanh."""
    recurrence: str = "residual"
    """What lies between two loops: residual, damped, [shared_]inter_loop_norm or [shared_]boundary_norm."""
    seed: int = 0
    penalty: float | None = None
    """Weight of the norm penalty (0.01 in the paper); giving it adds +penalty to the loss."""
    runs: Path = Path("runs")
    """Folder of the run store."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    data: str | None = None
    """auto, sotu, pydoc, wikitext103, or a text file or folder; the preset's own when omitted."""
    steps: int | None = None
    """Optimizer steps; the preset's own when omitted."""
    progress: Literal["bar", "json", "none"] = "bar"

    def spec(self, device: str) -> RunSpec:
        """The run these arguments name."""
        penalized = self.penalty is not None and "+penalty" not in self.loss
        return RunSpec(
            preset=preset(self.preset, source=self.data, steps=self.steps),
            loss=f"{self.loss}+penalty" if penalized else self.loss,
            readout=self.readout,
            recurrence=self.recurrence,
            seed=self.seed,
            penalty=PAPER_PENALTY if self.penalty is None else self.penalty,
            device=device,
        )


def main(argv: list[str] | None = None) -> int:
    """Exit status 0: the run is in the store; 1: it diverged; 2: wrong use. After 'reproduce': `train.reproduce`."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["reproduce"]:
        return reproduce.main(argv[1:])
    arguments = tyro.cli(Arguments, args=argv, prog="python -m train")
    console = Console(stderr=True, emoji=False)
    try:
        device, reason = use_device(arguments.device)
        spec = arguments.spec(device)
        store = RunStore(arguments.runs)
        _run(arguments, spec, store, console, reason)
    except DivergedError as error:
        console.print(f"diverged: {error}", markup=False, soft_wrap=True)
        return FELL_SHORT
    except LoopverifyError as error:
        console.print(f"error: {error}", markup=False, soft_wrap=True)
        return WRONG_USE
    return HELD


def _run(arguments: Arguments, spec: RunSpec, store: RunStore, console: Console, reason: str) -> None:
    say: Callable[[str], None] = lambda text: console.print(text, markup=False, soft_wrap=True)  # noqa: E731
    if arguments.progress == "json":
        ensure(spec, store, _print_json, say)
        return
    say(f"{spec.label} of preset {spec.preset.name} on {reason}")
    with RunBar(console, quiet=arguments.progress == "none") as bar:
        stored = ensure(spec, store, bar.event, say)
    run = result(stored)
    last = spec.preset.loops
    exits = " ".join(f"{run.metrics[f'ce@{k}']:.3f}" for k in range(1, last + 1))
    norms = " ".join(f"{run.metrics[f'norm@{k}']:,.4g}" for k in range(1, last + 1))
    say(f"held-out cross-entropy at exits 1..{last} (nats a token): {exits}")
    say(f"mean tokenwise norm ||H_k||_2 at loops 1..{last}:          {norms}")
    say(f"stored in {stored.path}")


def _print_json(event: Event) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()  # a parent watches; and a parent that is gone ends this process here


if __name__ == "__main__":
    sys.exit(main())
