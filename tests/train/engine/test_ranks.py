"""Several processes train one run: what one process would have, up to the order of sums, by DDP and by FSDP2."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from loopverify.errors import InputError
from loopverify.looped import unroll
from tests.train.engine.ranks import spec_of
from tests.train.forks import ROOT
from train.engine import loop
from train.engine.checkpointing import CheckpointPolicy
from train.engine.open import open_examples
from train.launch.run import ensure
from train.machine.distributed import ALONE, Ranks
from train.resume.checkpoint import open_checkpoint
from train.specification import Execution
from train.store import RunStore

pytestmark = pytest.mark.slow

Job = dict[str, Any]
# 13 windows on two ranks, three at a time: ranks with shares of 7 and 6 take three micro-batches each.
DDP: Job = {"name": "ddp", "parallel": "ddp", "micro_batch": 3, "preset": {"steps": 50, "batch": 13}}
# A tied head, an exit gate, scalar parameters, buffers that follow the data.
HARD: Job = {"parallel": "fsdp", "loss": "exit_weighted+penalty", "readout": "tapered", "recurrence": "damped"}
FSDP: Job = {**HARD, "name": "fsdp", "preset": {"steps": 50, "tied_head": True}}
SHORT: Job = {**HARD, "preset": {"steps": 8, "dropout": 0.1, "layers": 2}}
WIDE: list[Job] = [
    {**DDP, "name": "ddp-wide", "wide": True, "preset": {"steps": 10, "batch": 13, "tied_head": True}},
    {**FSDP, "name": "fsdp-wide", "wide": True, "preset": {"steps": 10, "tied_head": True}},
    {**FSDP, "name": "fsdp-wide-norm", "wide": True, "readout": "rmsnorm", "preset": {"steps": 10}},
]
KEPT: Job = {**HARD, "name": "kept", "preset": {"steps": 8}, "stop_after": 3}
JOBS: list[Job] = [
    {**DDP, "do": "train"},
    {**FSDP, "do": "train"},
    {**FSDP, "do": "train", "name": "fsdp-compiled", "compiled": True},
    {**DDP, "do": "gradients", "name": "gradients-ddp", "preset": {}},
    {**FSDP, "do": "gradients", "name": "gradients-fsdp"},
    {**SHORT, "do": "train", "name": "stopped", "stop_after": 3},
    {**SHORT, "do": "train", "name": "resumed"},
    {**SHORT, "do": "train", "name": "whole", "folder": "apart"},
    {**KEPT, "do": "train"},
    *({**job, "do": "train"} for job in WIDE),
    {**DDP, "do": "train", "name": "unequal", "but_on_rank_1": {"preset": {**DDP["preset"], "loops": 3}}},
]


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def do(store: Path, text: Path, jobs: list[Job], *launcher: str, fork: int | None = None) -> None:
    """Do jobs on ranks that a launcher starts, or that one process forks."""
    given = json.dumps({"store": str(store), "text": str(text), "jobs": jobs, "fork": fork})
    command = [sys.executable, *launcher, "-m", "tests.train.engine.ranks", given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def two(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store in which two ranks did all jobs."""
    store = tmp_path_factory.mktemp("two") / "store"
    store.mkdir()
    do(store, text_file, JOBS, *TORCHRUN)
    return store


@pytest.fixture
def alone(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """One process trains the run of a job; returns the run's folder."""
    monkeypatch.setattr(loop, "STEP_EVENT_EVERY", 1)

    def train(job: Job, start: Path | None = None) -> Path:
        spec, checkpoint = spec_of({**job, "micro_batch": None}, text_file, 1), None
        if start is not None:
            checkpoint = open_checkpoint(start)
            spec = replace(spec, continued=checkpoint.digest)
        store = RunStore(tmp_path)
        return ensure(
            spec, store, lambda event: None, lambda output: None, policy=CheckpointPolicy(start=checkpoint)
        ).path

    return train


def said(store: Path, name: str, rank: int = 0) -> list[str]:
    return (store / f"{name}.{rank}.said").read_text().splitlines()


def run_of(store: Path, name: str) -> Path:
    return Path(said(store, name)[-1].removeprefix("stored in "))


def losses(run: Path) -> dict[int, dict[str, float]]:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    return {event["step"]: {name: event[name] for name in event if name.startswith("loss/")} for event in steps}


def furthest(one: Path, other: Path) -> float:
    """The greatest difference between two runs in any term of the loss at any step, nats."""
    a, b = losses(one), losses(other)
    assert a.keys() == b.keys()
    return max(abs(a[step][name] - b[step][name]) for step in a for name in a[step])


@pytest.mark.parametrize("job", [DDP, FSDP], ids=lambda job: job["name"])
def test_fifty_steps_of_two_ranks_are_those_of_one_process(
    two: Path, alone: Callable[..., Path], job: Job, text_file: Path
) -> None:
    one, both = alone(job), run_of(two, job["name"])
    assert len(losses(both)) == 50
    assert furthest(one, both) < 1e-5
    mine, theirs = (json.loads((run / "result.json").read_text())["metrics"] for run in (one, both))
    assert theirs == pytest.approx(mine, rel=1e-4)
    assert load_file(one / "model.safetensors").keys() == load_file(both / "model.safetensors").keys()


@pytest.mark.parametrize("job", WIDE, ids=lambda job: job["name"])
def test_logits_in_chunks_on_two_ranks_train_as_all_at_once_in_one_process(
    two: Path, alone: Callable[..., Path], job: Job, text_file: Path
) -> None:
    assert spec_of(job, text_file, 2).chunk_tokens is not None
    plain = {**job, "wide": False}
    assert spec_of(plain, text_file, 1).chunk_tokens is None
    assert furthest(alone(plain), run_of(two, job["name"])) < 1e-5


def test_sublayers_compiled_between_the_gatherings_of_fsdp_lose_as_uncompiled_ones_do(two: Path) -> None:
    compiled = run_of(two, "fsdp-compiled")
    assert len(losses(compiled)) == 50
    assert furthest(run_of(two, "fsdp"), compiled) < 1e-5
    # Attention and MLP, each once for all its uses; what gathers the shards is in neither.
    assert said(two, "fsdp-compiled")[0] == "graphs: 2, breaks: 0"


@pytest.mark.parametrize("job", [{**DDP, "preset": {}}, FSDP], ids=lambda job: job["name"])
def test_the_gradient_of_a_block_used_k_times_is_that_of_plain_autograd(
    two: Path, job: Job, text_file: Path, tmp_path: Path
) -> None:
    spec = spec_of(job, text_file, 1)
    examples = open_examples(spec, RunStore(tmp_path))
    torch.manual_seed(spec.seed)
    module = spec.model(examples.vocab_size)
    tokens, targets = next(examples.training(spec.seed, 0, ALONE.share))
    spec.objective()(unroll(module.looped(), tokens, grad=True), targets).total.backward()
    found = load_file(two / f"gradients-{job['name']}.safetensors")
    assert found.keys() == dict(module.named_parameters()).keys()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-7, msg=name)


def test_two_ranks_stopped_and_resumed_end_as_if_they_never_were(two: Path) -> None:
    assert [text.split(" after step 3")[0] for text in said(two, "stopped", rank=1)] == [
        "PreemptedError: stopped by SIGTERM"
    ]
    assert "after step 3" in said(two, "stopped")[0]  # though the signal reached the other rank
    assert said(two, "resumed")[0].startswith("resumed after step 3 from ")
    whole, resumed = (load_file(run_of(two, name) / "model.safetensors") for name in ("whole", "resumed"))
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []


def kept(store: Path) -> Path:
    (checkpoint,) = store.glob("partial/*/step-3")
    return checkpoint


def test_a_checkpoint_of_two_ranks_goes_on_in_one_process(two: Path, alone: Callable[..., Path]) -> None:
    assert sorted(path.name for path in kept(two).glob("*.safetensors")) == [
        f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)
    ]
    whole, continued = alone(KEPT), alone(KEPT, start=kept(two))
    assert furthest(whole, continued) < 1e-5


def test_a_checkpoint_of_two_ranks_goes_on_on_four(
    two: Path, alone: Callable[..., Path], text_file: Path, tmp_path: Path
) -> None:
    job = {name: value for name, value in KEPT.items() if name != "stop_after"}
    do(tmp_path, text_file, [{**job, "do": "train", "start": str(kept(two))}], fork=4)
    assert said(tmp_path, "kept")[0] == f"resumed after step 3 from {kept(two)}"
    assert furthest(alone(KEPT), run_of(tmp_path, "kept")) < 1e-5


def test_ranks_that_disagree_about_the_loops_say_so_on_every_rank(two: Path) -> None:
    output = (
        "InputError: the ranks disagree about loops (rank 0: 4, rank 1: 3); start all of them with the same command"
    )
    assert said(two, "unequal", rank=0) == said(two, "unequal", rank=1) == [output]


class TestAgreement:
    def test_one_rank_agrees_with_itself(self) -> None:
        assert ALONE.highest(3) == 3
        assert ALONE.broadcast("x") == "x"
        assert torch.equal(ALONE.average_(torch.ones(2)), torch.ones(2))
        assert torch.equal(ALONE.share(torch.arange(5)), torch.arange(5))
        ALONE.require_equal({"loops": 4})

    def test_shares_are_as_equal_as_can_be_and_leave_nothing_out(self) -> None:
        shares = [Ranks(rank, 4).share(torch.arange(13)) for rank in range(4)]
        assert [len(share) for share in shares] == [4, 3, 3, 3]
        assert torch.equal(torch.cat(shares), torch.arange(13))
        assert Ranks(0, 4).largest_share(13) == 4

    def test_more_ranks_than_windows_are_rejected(self) -> None:
        with pytest.raises(
            InputError, match="4 ranks share a batch of 3 windows; expected at least one window per rank"
        ):
            Ranks(0, 4).share(torch.arange(3))


class TestExecution:
    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            ({"ranks": 2}, "2 ranks with parallel=None; expected ddp or fsdp for 2 or more"),
            ({"parallel": "ddp"}, "1 ranks with parallel=ddp; expected ddp or fsdp for 2 or more"),
            ({"micro_batch": 0}, "micro-batch is 0; expected an integer >= 1"),
        ],
    )
    def test_one_that_cannot_be_is_rejected(self, wrong: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            Execution(**wrong)
