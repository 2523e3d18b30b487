"""`python -m bench.scale --presets 44m 129m --steps 40`: what the presets of the papers take on this machine.

A preset is trained as a run trains it, at its own batch, on random tokens of its whole vocabulary: nothing has to be
downloaded, and neither speed nor memory depends on the text. A line for each: tokens/s and MFU from the tenth step on,
and the peak of memory (on CUDA what torch's allocator held, on a CPU the resident set of the process).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
import tyro

from bench.memory import Resident
from loopverify.errors import InputError, LoopverifyError
from train.data import Corpus, TextExamples, Tokenizer, Tokens
from train.engine.events import Event
from train.engine.loop import STEP_EVENT_EVERY, train
from train.machine.hardware import dtype_of, use_device, use_precision
from train.specification import Execution, RunSpec, preset
from train.specification.gpus import recognized
from train.specification.plan import forward_flops

__all__ = ["Taken", "measure", "random_corpus"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Train presets for a few steps on random tokens and print speed, memory and loss."""

    presets: tuple[str, ...] = ("44m", "129m")
    conditions: tuple[str, ...] = ("per_loop/rmsnorm", "per_loop/raw")
    steps: int = 40
    """Steps per run; the first ten are not timed."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: bool = False
    """Compile the block with torch.compile."""
    micro_batch: int | None = None
    """Windows computed at once; on a GPU as many as fit, on a CPU the whole batch when omitted."""
    threads: int | None = None
    """CPU threads; torch's own choice when omitted."""

    def specs(self) -> Iterator[RunSpec]:
        """The runs that these arguments select."""
        if self.steps <= STEP_EVENT_EVERY:
            raise InputError(f"steps is {self.steps}; expected more than the {STEP_EVENT_EVERY} that are not timed")
        device, _ = use_device(self.device)
        precision, _ = use_precision(self.precision, device)
        execution = Execution(micro_batch=self.micro_batch, compiled=self.compile, precision=precision)
        for name in self.presets:
            chosen = preset(name, steps=self.steps)
            chosen = replace(chosen, eval_windows=1, history_windows=1, history_every=self.steps, threads=self.threads)
            for condition in self.conditions:
                yield replace(RunSpec.of_condition(chosen, condition, device=device), execution=execution)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Speed, memory and loss of some steps of a preset."""

    tokens_per_s: float
    mfu: float | None
    """None on a CPU, in float32, or on a GPU whose peak is unknown."""
    peak_gib: float
    losses: tuple[float, float]
    """Loss of the tenth and of the last step (nats per token)."""


def main() -> int:
    """Exit status 0: all were measured; 2: wrong use, or too little memory."""
    arguments = tyro.cli(Arguments, prog="python -m bench.scale")
    try:
        _report(list(arguments.specs()))
    except LoopverifyError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _report(specs: list[RunSpec]) -> None:
    print("| preset, condition | batch | computed in | tokens/s | MFU | peak memory (GiB) | loss |")  # noqa: T201
    print("|---|---|---|---|---|---|---|", flush=True)  # noqa: T201
    for spec in specs:
        taken, p = measure(spec), spec.preset
        at_once = "" if spec.execution.micro_batch is None else f", {spec.execution.micro_batch} at once"
        mfu = "" if taken.mfu is None else f"{taken.mfu:.3f}"
        print(  # noqa: T201
            f"| {p.name}, {spec.condition} | {p.batch} × {p.seq_len}{at_once} "
            f"| {dtype_of(spec.device, spec.execution.precision)}{', compiled' if spec.execution.compiled else ''} "
            f"| {taken.tokens_per_s:,.4g} | {mfu} | {taken.peak_gib:.3g} "
            f"| {taken.losses[0]:.3f} → {taken.losses[1]:.3f} |",
            flush=True,
        )


def measure(spec: RunSpec) -> Taken:
    """Train a run on random tokens, without a store."""
    p, cuda = spec.preset, spec.device == "cuda"
    if p.threads is not None:
        torch.set_num_threads(p.threads)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seen: list[tuple[float, Event]] = []
    started = time.perf_counter()

    def note(event: Event) -> None:
        if event["event"] != "step":
            return
        seen.append((time.perf_counter(), event))
        print(  # noqa: T201
            f"{spec.condition}: step {event['step']} of {event['steps']}, {seen[-1][0] - started:.0f} s",
            file=sys.stderr,
            flush=True,
        )

    with Resident() as resident:
        corpus = random_corpus(p.data.vocab_max, p.seq_len * 2 * max(p.batch, 64))
        train(spec, TextExamples(corpus=corpus, length=p.seq_len, stride=p.stride, batch=p.batch), note)
    (begun, first), (ended, last) = seen[0], seen[-1]
    per_s = (last["step"] - first["step"]) * p.batch * p.seq_len / (ended - begun)
    gpu = recognized(torch.cuda.get_device_name()) if cuda and spec.execution.precision != "float32" else None
    return Taken(
        tokens_per_s=per_s,
        mfu=None if gpu is None else 3 * forward_flops(spec, p.data.vocab_max) * per_s / gpu.flops,
        peak_gib=torch.cuda.max_memory_allocated() / 2**30 if cuda else resident.peak / 2**10,
        losses=(_loss(first), _loss(last)),
    )


def _loss(event: Event) -> float:
    return sum(value for name, value in event.items() if name.startswith("loss/"))


def random_corpus(vocab_size: int, tokens: int) -> Corpus:
    """Uniformly drawn tokens, of which a tenth is held out."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (tokens,), generator=generator)
    cut = tokens // 10
    return Corpus(
        name="random tokens",
        recorded_name="random tokens",
        train=Tokens.of(ids[cut:]),
        held_out=Tokens.of(ids[:cut]),
        tokenizer=Tokenizer(("<unk>", *(f"w{number}" for number in range(1, vocab_size)))),
        digest="random",
        characters=0,
        dropped=0,
    )


if __name__ == "__main__":
    sys.exit(main())
