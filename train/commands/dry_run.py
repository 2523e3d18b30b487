"""`python -m train dry-run --preset 44m --gpu H100`: what a run would take, with nothing trained or allocated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tyro
from rich.console import Console

from train.commands import DONE, FELL_SHORT
from train.specification import RunSpec, preset
from train.specification.gpus import Gpu, gpu
from train.specification.plan import RESERVE, Plan, plan

__all__ = ["main"]

_GIGA, _TERA = 1e9, 1e12


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Print the parameters, the FLOPs per token, the memory and the time of a run, without training it."""

    preset: str = "44m"
    """tiny, small, 44m, 129m, 1.4b or hops."""
    gpu: str = "H100"
    """A100-40GB, A100-80GB, H100, H200, B200, L40S or RTX-4090."""
    gpus: int = 1
    """GPUs that share every batch, each with a copy of the model."""
    mfu: float = 0.4
    """Assumed model FLOPs utilization, in (0, 1]; the estimated time is inversely proportional to it."""
    loss: str = "per_loop"
    readout: str = "rmsnorm"
    recurrence: str = "residual"
    steps: int | None = None
    """Optimizer steps; the preset's own when omitted."""
    train_tokens: int | None = None
    """Tokens of the training text; determine the steps of a preset that counts epochs."""

    def spec(self) -> RunSpec:
        """The run that these arguments select."""
        return RunSpec(
            preset=preset(self.preset, steps=self.steps),
            loss=self.loss,
            readout=self.readout,
            recurrence=self.recurrence,
            device="cuda",
        )


def main(argv: Sequence[str], console: Console) -> int:
    """Returns exit status 0: printed; 1: printed, and one window does not fit the GPU."""
    arguments = tyro.cli(Arguments, args=list(argv), prog="python -m train dry-run")
    spec, chosen = arguments.spec(), gpu(arguments.gpu)
    planned = plan(spec, train_tokens=arguments.train_tokens)
    lines = [*_model(spec, planned), *_memory(planned, chosen, arguments.gpus), *_time(planned, chosen, arguments)]
    Console().print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    return DONE if planned.largest_micro_batch(chosen) else FELL_SHORT


def _model(spec: RunSpec, planned: Plan) -> Iterator[str]:
    p = spec.preset
    named = f"{p.name}, {spec.condition}"
    yield f"{named}: {planned.parameters:,} parameters; {p.layers} layers applied K = {p.loops} times"
    yield (
        f"FLOPs per token: {planned.flops:.4g} (forward {planned.forward_flops:.4g}, backward twice that): the matrix "
        f"products of all K loops and of their exits, over a vocabulary of {p.data.vocab_max:,}"
    )
    tera = planned.flops * planned.tokens_per_step / _TERA
    yield f"per step: {p.batch} windows of {p.seq_len} tokens, {tera:,.4g} TFLOP"


def _memory(planned: Plan, chosen: Gpu, gpus: int) -> Iterator[str]:
    share = planned.share(gpus)
    parts = {"weights": 1, "gradients": 1, "AdamW": 2}
    held = ", ".join(f"{name} {count * 4 * planned.parameters / _GIGA:,.3g}" for name, count in parts.items())
    copies = planned.constant_bytes - 16 * planned.parameters
    reserve = f"{RESERVE / _GIGA:g} in reserve"
    yield f"memory (GB): {held}, bfloat16 copies and chunks {copies / _GIGA:,.3g}, and {reserve}; activations:"
    sizes = [2**i for i in range(share.bit_length()) if 2**i < share] + [share]
    fits = min(share, planned.largest_micro_batch(chosen))
    for micro in sorted({*sizes, *([fits] if fits else [])}):
        activations, total = micro * planned.window_bytes / _GIGA, planned.memory(micro) / _GIGA
        verdict = "fits" if micro <= fits else "does not fit"
        most = ", the most that does" if micro == fits < share else ""
        yield f"  micro-batch {micro:>3}: {activations:>8,.3g}, in all {total:>8,.3g}: {verdict} {chosen.name}{most}"


def _time(planned: Plan, chosen: Gpu, arguments: Arguments) -> Iterator[str]:
    seconds = planned.seconds_per_step(chosen, mfu=arguments.mfu, gpus=arguments.gpus)
    yield (
        f"time on {arguments.gpus} {chosen.name}, if {arguments.mfu:.0%} of its {chosen.flops / _TERA:,.0f} TFLOP/s is "
        f"reached (--mfu; assumed, not measured): {seconds:.3g} s per step, "
        f"{planned.tokens_per_step / seconds:,.3g} tokens/s"
    )
    if planned.steps is None:
        thousand = _duration(1000 * seconds)
        yield f"1,000 steps: {thousand}; for the whole run, which counts epochs, give the text's --train-tokens"
    else:
        yield f"{planned.steps:,} steps: {_duration(planned.steps * seconds)}"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
