"""`python -m train sweep --presets tiny --conditions per_loop/rmsnorm per_loop/raw --seeds 0-2`: many runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import tyro
from rich.console import Console

from loopverify.cli.folder import runs_folder
from loopverify.errors import InputError
from train.commands import DONE, FELL_SHORT
from train.commands.computing import Computing
from train.launch.fleet import ensure_all
from train.launch.slurm import options, tasks, train_on_slurm
from train.launch.watch import FleetBars, fleet_bars
from train.machine.hardware import use_device, use_precision
from train.specification import ORDINARY, Execution, RunSpec, preset
from train.store import RunStore
from train.study.tables import table

__all__ = ["main", "seeds_of", "specs_of"]

MOST_SEEDS = 10_000
"""A longer range is taken for a typing error."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Train every condition of every preset with every seed, where it is not in the store yet."""

    presets: tuple[str, ...] = ("tiny",)
    """tiny, small, 44m, 129m, 1.4b, hops."""
    conditions: tuple[str, ...] = ()
    """loss/readout or loss/readout/recurrence, such as per_loop/rmsnorm, terminal+penalty/rmsnorm or
    per_loop/rmsnorm/damped; per_loop/raw@lr=7e-4 sets another learning rate. The seven of Table 2 when omitted."""
    seeds: str = "0"
    """Such as 0-2 or 0,3,5-7."""
    runs: Annotated[str, tyro.conf.arg(metavar="DIR")] = "runs"
    """Folder of the run store; on a cluster, one that its nodes share."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    data: str | None = None
    """A named text, a file or a folder; each preset's own when omitted."""
    steps: int | None = None
    """Optimizer steps; each preset's own when omitted."""
    workers: int | None = None
    """Runs trained in parallel; when omitted, as many as GPUs or cores allow, or as Slurm starts."""
    ranks: int | None = None
    """Processes that train each run together; when omitted, one, or the tasks of a job on Slurm."""
    slurm: tuple[str, ...] | None = None
    """Submit the runs to Slurm, with these options of sbatch: partition=gpu nodes=1 ntasks-per-node=4 gpus-per-node=4
    time=240 (minutes)."""
    poll: float = 10.0
    """Seconds between two queries of Slurm's queue."""
    computing: tyro.conf.OmitArgPrefixes[Computing] = field(default_factory=Computing)

    def specs(self) -> list[RunSpec]:
        """The runs that these arguments select."""
        device = self._device()
        return specs_of(
            self.presets,
            self.conditions or table("T2").conditions,
            seeds_of(self.seeds),
            device=device,
            source=self.data,
            steps=self.steps,
            execution=self._execution(device),
        )

    def _device(self) -> str:
        """The kind of device of the runs; on Slurm that of the jobs, which the login node may lack."""
        if self.slurm is None:
            return use_device(self.device)[0]
        if self.device != "auto":
            return self.device
        return "cuda" if any(key.startswith(("gpus", "gres")) for key in options(self.slurm)) else "cpu"

    def _execution(self, device: str) -> Execution:
        requested = self.computing.precision
        # What the GPUs of Slurm's jobs support is unknown here, so 'auto' is the device's default precision.
        unknown = self.slurm is not None and requested == "auto"
        precision = None if unknown else use_precision(requested, device)[0]
        return self.computing.execution(precision, self._ranks())

    def _ranks(self) -> int:
        if self.slurm is None:
            return 1 if self.ranks is None else self.ranks
        of_job = tasks(options(self.slurm))
        if self.ranks not in (None, of_job):
            raise InputError(
                f"--ranks is {self.ranks}, and a job of Slurm has {of_job} tasks (nodes x ntasks-per-node); "
                f"set --slurm ntasks-per-node={self.ranks}, or omit --ranks"
            )
        return of_job


def main(argv: Sequence[str], console: Console) -> int:
    """Returns exit status 0: all runs are in the store; 1: some failed, and the others are in the store."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m train sweep")
    specs = arguments.specs()
    with fleet_bars(console) as bars:
        failures = _train(arguments, specs, RunStore(runs_folder(arguments.runs)), bars)
    for spec, failure in failures.items():
        bars.say(f"failed: {spec.preset.name} {spec.label}: {failure}")
    bars.say(f"{len(specs) - len(failures)} of {len(specs)} runs are in {arguments.runs}")
    return FELL_SHORT if failures else DONE


def specs_of(
    presets: Sequence[str],
    conditions: Sequence[str],
    seeds: Sequence[int],
    *,
    device: str,
    source: str | None = None,
    steps: int | None = None,
    execution: Execution = ORDINARY,
) -> list[RunSpec]:
    """Presets x seeds x conditions, each once. All conditions of a seed come before the next seed.

    Raises:
        InputError: nothing to train, an unknown preset or condition, or more ranks than a batch has windows.
    """
    if not presets:
        raise InputError("no presets; expected at least one, such as --presets tiny")
    chosen = [preset(name, source=source, steps=steps) for name in presets]
    for one in chosen:
        if execution.ranks > one.batch:
            raise InputError(
                f"{execution.ranks} ranks share the {one.batch} windows of a batch of {one.name}; "
                "expected at least one window per rank: reduce --ranks"
            )
    specs = [
        replace(RunSpec.of_condition(one, condition, seed=seed, device=device), execution=execution)
        for one in chosen
        for seed in seeds
        for condition in conditions
    ]
    return list(dict.fromkeys(specs))


def seeds_of(text: str) -> list[int]:
    """Seeds such as '0-2' or '0,3,5-7', in the order given.

    Raises:
        InputError: another form.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise InputError(f"seeds are {text!r}; expected numbers and ranges such as 0-2 or 0,3,5-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first >= MOST_SEEDS:
            raise InputError(f"seeds are {text!r}; expected at most {MOST_SEEDS:,} in a range")
        seeds += range(first, last + 1)
    return seeds


def _train(arguments: Arguments, specs: list[RunSpec], store: RunStore, bars: FleetBars) -> dict[RunSpec, str]:
    if arguments.slurm is None:
        return ensure_all(specs, store, workers=arguments.workers, progress=bars, say=bars.say)
    return train_on_slurm(
        specs,
        store,
        options(arguments.slurm),
        at_once=arguments.workers,
        progress=bars,
        say=bars.say,
        every=arguments.poll,
    )
