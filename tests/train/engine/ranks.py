"""`[torchrun ...] -m tests.train.engine.ranks JOBS`: what the tests of several ranks do on each, job after job."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from loopverify.errors import LoopverifyError
from tests.train.compiling import INDUCTOR
from tests.train.micro import micro
from tests.train.stops import After
from train.engine import loop
from train.engine.checkpointing import CheckpointPolicy
from train.engine.open import open_examples
from train.engine.trainee import trainee
from train.launch.run import ensure
from train.machine.distributed import Ranks, joined
from train.resume.checkpoint import open_checkpoint
from train.specification import Execution, RunSpec
from train.store import RunStore


def spec_of(job: dict[str, Any], text: Path, ranks: int) -> RunSpec:
    """The run of a job; on one rank it is an ordinary one."""
    shape = micro(text, **job.get("preset", {}))
    if job.get("wide"):  # may have, not has: enough for the logits to be taken in chunks
        shape = replace(shape, data=replace(shape.data, vocab_max=4096))
    execution = Execution(
        ranks=ranks,
        parallel=job["parallel"] if ranks > 1 else None,
        micro_batch=job.get("micro_batch"),
        compiled=job.get("compiled", False),
    )
    return RunSpec(
        preset=shape,
        loss=job.get("loss", "per_loop"),
        readout=job.get("readout", "rmsnorm"),
        recurrence=job.get("recurrence", "residual"),
        seed=job.get("seed", 0),
        execution=execution,
    )


def gradients(job: dict[str, Any], spec: RunSpec, store: RunStore, ranks: Ranks) -> dict[str, torch.Tensor]:
    """The gradient of the first batch at the first weights, whole, by parameter."""
    examples = open_examples(spec, store)
    torch.manual_seed(spec.seed)
    model = trainee(spec, spec.model(examples.vocab_size), ranks)
    loss, _ = model.loss(*next(examples.training(spec.seed, 0, ranks.share)))
    loss.backward()
    model.finish()
    named = model.module.named_parameters()
    whole = {name: getattr(parameter.grad, "full_tensor", lambda g=parameter.grad: g)() for name, parameter in named}
    return {name: gradient.detach().contiguous() for name, gradient in whole.items()}


def do(job: dict[str, Any], given: dict[str, Any], ranks: Ranks) -> None:
    """One job; its outcome is what lies in the store, or the file of its name."""
    store = RunStore(Path(given["store"]) / job.get("folder", ""))
    spec = spec_of(job, Path(given["text"]), ranks.count)
    if job["do"] == "gradients":
        found = gradients(job, spec, store, ranks)
        if ranks.first:
            save_file(found, Path(given["store"]) / f"{job['name']}.safetensors")
        return
    start = None if "start" not in job else open_checkpoint(Path(job["start"]))
    policy = CheckpointPolicy(every=3600.0, start=start)
    if "stop_after" in job:
        policy = CheckpointPolicy(every=3600.0, preemption=After(job["stop_after"] if ranks.rank == 1 else 10**6))
    if start is not None:
        spec = replace(spec, continued=start.digest)
    said: list[str] = []
    try:
        stored = ensure(spec, store, lambda event: None, said.append, policy=policy, ranks=ranks)
        if spec.execution.compiled:
            counters = torch._dynamo.utils.counters
            said.append(f"graphs: {counters['stats']['unique_graphs']}, breaks: {len(counters['graph_break'])}")
        said.append(f"stored in {stored.path}")
    except LoopverifyError as error:
        said.append(f"{type(error).__name__}: {error}")
    (Path(given["store"]) / f"{job['name']}.{ranks.rank}.said").write_text("\n".join(said))


def work(given: dict[str, Any]) -> None:
    """Every job, on this rank."""
    torch.set_num_threads(1)
    loop.STEP_EVENT_EVERY = 1
    if not INDUCTOR:
        torch.compile = partial(torch.compile, backend="aot_eager")  # type: ignore[assignment]
    with joined("cpu") as ranks:
        for job in given["jobs"]:
            # A job may be another one on some rank, which is what ranks must never let pass.
            do({**job, **job.get("but_on_rank_1", {})} if ranks.rank == 1 else job, given, ranks)


def fork(given: dict[str, Any], count: int) -> int:
    """As torchrun, with torch imported once; returns how many ranks failed."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    children = []
    for rank in range(count):
        children.append(os.fork())
        if children[-1] == 0:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count)}
            os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
            work(given)
            os._exit(0)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    sys.exit(fork(task, task["fork"]) if task["fork"] else work(task))
