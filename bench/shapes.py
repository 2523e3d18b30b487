"""The shapes that are measured: two presets of the harness at a batch that a CPU can take, and a wide loss alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.peers.nanogpt import GPT, train_step
from loopverify.looped import Looped
from loopverify.models import LoopedTransformer
from train.engine.stepper import Stepper
from train.engine.trainee import trainee
from train.machine.distributed import ALONE
from train.specification import PRESETS, Preset, RunSpec

__all__ = ["QUICK", "SHAPES", "WIDE", "WIDE_QUICK", "Shape", "Wide"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model in training: the preset, without dropout, on random tokens."""

    preset: Preset
    vocab_size: int
    rounds: int

    @property
    def label(self) -> str:
        p = self.preset
        return f"{p.name}: {p.batch} × {p.seq_len} tokens, K = {p.loops}, V = {self.vocab_size:,}"

    def spec(self, loss: str, readout: str) -> RunSpec:
        return RunSpec(preset=self.preset, loss=loss, readout=readout)

    def module(self, readout: str, device: str) -> LoopedTransformer:
        torch.manual_seed(0)
        return self.spec("per_loop", readout).model(self.vocab_size).to(device)

    def looped(self, readout: str, device: str) -> Looped:
        return self.module(readout, device).looped()

    def batch(self, device: str) -> tuple[Tensor, Tensor]:
        """Tokens and targets, each (B, T)."""
        generator = torch.Generator().manual_seed(1)
        shape = (2, self.preset.batch, self.preset.seq_len)
        tokens, targets = torch.randint(self.vocab_size, shape, generator=generator).to(device)
        return tokens, targets

    def step(self, loss: str, readout: str, device: str) -> Callable[[], None]:
        """One training step of the harness."""
        spec, module = self.spec(loss, readout), self.module(readout, device)
        stepper = Stepper(
            spec,
            trainee(spec, module, ALONE),
            torch.device(device),
            steps=10_000,
            ranks=ALONE,
            say=lambda message: None,
        )
        tokens, targets = self.batch(device)
        return lambda: stepper.step(5_000, tokens, targets)

    def peer(self) -> GPT:
        """The same model in plain PyTorch."""
        p = self.preset
        return GPT(self.vocab_size, p.d_model, p.layers, p.heads, p.d_ff, p.loops, p.tied_head)

    def peer_step(self, device: str) -> Callable[[], Tensor]:
        """One step of the same training in plain PyTorch."""
        torch.manual_seed(0)
        model = self.peer().to(device)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=self.preset.lr, weight_decay=self.preset.weight_decay, fused=device == "cuda"
        )
        tokens, targets = self.batch(device)
        return lambda: train_step(model, optimizer, tokens, targets)


@dataclass(frozen=True, kw_only=True)
class Wide:
    """Exits of a run without the run: K states and a head, where the vocabulary is what costs."""

    exits: int
    tokens: int
    channels: int
    vocab_size: int
    rounds: int

    @property
    def label(self) -> str:
        return f"K = {self.exits}, N = {self.tokens:,}, d = {self.channels}, V = {self.vocab_size:,}"


SHAPES: Mapping[str, Shape] = {
    "tiny": Shape(preset=PRESETS["tiny"], vocab_size=1024, rounds=15),
    "44m": Shape(
        preset=replace(PRESETS["44m"], batch=2, seq_len=128, stride=64, dropout=0.0), vocab_size=20_000, rounds=3
    ),
}
QUICK = replace(SHAPES["tiny"], preset=replace(PRESETS["tiny"], batch=2, seq_len=8), vocab_size=64, rounds=1)
WIDE = Wide(exits=4, tokens=2048, channels=512, vocab_size=20_000, rounds=5)
WIDE_QUICK = Wide(exits=2, tokens=512, channels=16, vocab_size=4096, rounds=1)
