"""A run's command line names the run, however it is computed; and a sweep's options name the same runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tyro

from loopverify.errors import InputError
from train.__main__ import Arguments, main
from train.commands.sweep import Arguments as SweepArguments
from train.launch.fleet import command, torchrun
from train.machine.hardware import use_precision
from train.specification import ORDINARY, Execution, RunSpec, preset
from train.store import RunStore

SPEC = RunSpec(preset=preset("tiny", steps=7), loss="per_loop+penalty", readout="raw", penalty=0.3, seed=4)
EXECUTIONS = [
    ORDINARY,
    Execution(micro_batch=4, compiled=True),
    Execution(ranks=2, parallel="ddp", precision="bfloat16"),
    Execution(ranks=3, parallel="fsdp", micro_batch=1, compiled=True),
]


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_command_of_a_run_names_it(execution: Execution, device: str, tmp_path: Path) -> None:
    spec = replace(SPEC, execution=execution, device=device)
    line = command(spec, RunStore(tmp_path))
    parsed = tyro.cli(Arguments, args=line[line.index("train") + 1 :])
    precision, _ = use_precision(parsed.computing.precision, parsed.device)
    own = replace(spec.execution, precision=precision)
    assert own.precision == {"cpu": execution.precision, "cuda": None}[device]  # bfloat16 is what CUDA has by itself
    assert parsed.spec(parsed.device, precision, execution.ranks) == replace(spec, execution=own)
    assert Path(parsed.runs) == tmp_path


def test_several_processes_are_started_by_torchrun(tmp_path: Path) -> None:
    assert torchrun(1) == ()
    line = command(SPEC, RunStore(tmp_path), torchrun(3))
    assert line[1:8] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "-m", "train"]


@pytest.mark.parametrize(
    ("given", "execution"),
    [
        ("", ORDINARY),
        ("--ranks 1 --parallel fsdp", ORDINARY),
        ("--ranks 2", Execution(ranks=2, parallel="ddp")),
        (
            "--ranks 3 --parallel fsdp --micro-batch 1 --compile --precision bfloat16",
            Execution(ranks=3, parallel="fsdp", micro_batch=1, compiled=True, precision="bfloat16"),
        ),
        ("--slurm ntasks-per-node=4", Execution(ranks=4, parallel="ddp")),
        ("--slurm nodes=2 ntasks-per-node=4", Execution(ranks=8, parallel="ddp")),
        ("--slurm nodes=2 --ranks 2", Execution(ranks=2, parallel="ddp")),
        ("--slurm gpus=1", ORDINARY),
        ("--precision float32 --slurm gpus=1", Execution(precision="float32")),
    ],
)
def test_a_sweep_says_how_each_of_its_runs_is_computed(given: str, execution: Execution) -> None:
    specs = tyro.cli(SweepArguments, args=["--device", "auto", *given.split()]).specs()
    assert {spec.execution for spec in specs} == {execution}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--ranks 0", "ranks is 0; expected an integer >= 1"),
        (
            "--ranks 17",
            "17 ranks share the 16 windows of a batch of tiny; expected at least one window per rank: reduce --ranks",
        ),
        ("--ranks 4 --slurm gpus=4", r"--ranks is 4, and a job of Slurm has 1 tasks .*; set --slurm ntasks-per-node=4"),
        ("--slurm ntasks=4", "slurm option ntasks=4; expected nodes and ntasks-per-node, whose product is the number"),
        ("--slurm nodes=1-2", "slurm option nodes=1-2; expected a whole number, such as nodes=2"),
        ("--slurm ntasks-per-node=x", "slurm option ntasks-per-node=x; expected a whole number"),
        ("--slurm nodes=0", "slurm option nodes=0; expected a whole number, such as nodes=2"),
    ],
)
def test_what_cannot_be_computed_so_is_rejected(given: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tyro.cli(SweepArguments, args=given.split()).specs()


@pytest.mark.slow
def test_a_sweep_trains_each_run_on_two_ranks_and_says_why_one_failed(
    text_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--data", str(text_file), "--runs", str(tmp_path), "--device", "cpu", "--steps", "3")
    conditions = ("--conditions", "terminal/raw", "per_loop+penalty=1e38/rmsnorm")
    computing = ("--ranks", "2", "--parallel", "fsdp", "--micro-batch", "4")
    assert main(["sweep", *arguments, *conditions, *computing]) == 1
    output = capfd.readouterr().err
    assert "failed: tiny per_loop+penalty=1e+38/rmsnorm seed 0: exit status 1: diverged: " in output
    (stored,) = RunStore(tmp_path).runs()
    assert (stored.spec["loss"], stored.spec["readout"]) == ("terminal", "raw")
    assert stored.spec["execution"] == {
        "ranks": 2,
        "parallel": "fsdp",
        "micro_batch": 4,
        "compiled": False,
        "precision": "float32",
    }
