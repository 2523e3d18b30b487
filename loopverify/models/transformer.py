"""The paper's looped transformer (Sharma & Vu 2026, section 3): one pre-norm decoder stack applied K times.

Its interventions are fields of the configuration: what stands between state and head (`readout`), what between two
loops (`inter_loop_norm` and `damping`; by name in `RECURRENCES`), and whether exits are learned (`exit_gate`).

Shapes: B batch, T tokens, D channels, V vocabulary.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from loopverify.errors import InputError
from loopverify.looped import Looped, Trace
from loopverify.models.config import TransformerConfig
from loopverify.models.decoding import StepwiseDecode, slots_in_use
from loopverify.models.exit_gate import ExitGate, exit_distribution, first_exit
from loopverify.models.layers import Context, Damping, DecoderLayer, Sublayer, dropout
from loopverify.models.readouts import READOUTS, TaperedNorm

__all__ = ["LoopedTransformer"]


class LoopedTransformer(nn.Module):
    """The reference model. `looped()` is its `Looped` view; the module itself holds the parameters."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.embedding_drop = dropout(config)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.readout_norm = READOUTS[config.readout](config)
        self.loop_norm = {
            "none": None,
            "own": nn.RMSNorm(config.d_model, eps=config.norm_eps),
            "shared": self.readout_norm,
        }[config.inter_loop_norm]
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=config.init_std)
        if config.tied_head:
            self.head.weight = self.embedding.weight
        # Below here nothing draws random numbers: one seed gives the same weights with any intervention.
        self.damping = None if config.damping is None else Damping(config.damping)
        self.exit_gate = ExitGate(config.d_model) if config.exit_gate else None

    def embed(self, tokens: Tensor) -> tuple[Tensor, Context]:
        """tokens (B, T) int64 -> H_0 (B, T, D) and the context of T positions."""
        state: Tensor = self.embedding_drop(self.embedding(tokens))
        return state, Context(self.rope(torch.arange(tokens.shape[1], device=tokens.device)))

    def embed_masked(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Context]:
        """As `embed`, for rows with padding: mask (B, T) bool is True at real tokens, which alone are attended to
        and whose positions count from the first real token of their row."""
        state: Tensor = self.embedding_drop(self.embedding(tokens))
        positions = (mask.long().cumsum(1) - 1).clamp_min(0)
        T = tokens.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=tokens.device).tril()
        # A padding token attends to itself, so that its softmax has something to sum over.
        visible = causal & (mask[:, None, None, :] | torch.eye(T, dtype=torch.bool, device=tokens.device))
        return state, Context(self.rope(positions[:, None, :]), visible)

    def step(self, state: Tensor, context: Context, loop: int) -> Tensor:
        """H_{k-1} (B, T, D) -> H_k: the whole stack once, with the inter-loop norm, if any, before or behind it."""
        norm, at_start = self.loop_norm, self.config.norm_at == "start"
        if norm is not None and at_start and loop > 1:
            state = norm(state)
        if self.damping is not None:
            state = state + self.damping(state, context)
        for layer in self.layers:
            state = layer(state, context)
        return state if norm is None or at_start else norm(state)

    def branches(self, state: Tensor, context: Context, loop: int) -> list[tuple[str, Tensor]]:
        """What each sublayer adds to the stream, in order: [(name, (B, T, D)), ...]."""
        sublayers: list[tuple[str, Sublayer]] = [] if self.damping is None else [("damping", self.damping)]
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            sublayers += [(f"layers.{index}.attention", layer.attention), (f"layers.{index}.mlp", layer.mlp)]
        added = []
        for name, sublayer in sublayers:
            added.append((name, sublayer(state, context)))
            state = state + added[-1][1]
        return added

    def readout(self, state: Tensor, context: Context, loop: int, loops: int) -> Tensor:
        """H_k (..., D) -> logits (..., V). `final_only` normalizes the last exit of the run, and no other."""
        logits: Tensor = self.head(self.shown(state, loop, loops))
        return logits

    def exit_probabilities(self, trace: Trace) -> Tensor:
        """(B, T, K), summing to 1, in float32 at least: how likely each token is to leave at each exit.

        Raises:
            InputError: the model has no exit gate.
        """
        return exit_distribution(self._exit_logits(trace))

    def choose_exit(self, trace: Trace, threshold: float) -> Tensor:
        """(B, T) int64 in 1..K: the first exit whose cumulative probability reaches `threshold` (0..1).

        Raises:
            InputError: the model has no exit gate, or the threshold is out of range.
        """
        return first_exit(self._exit_logits(trace), threshold)

    def set_progress(self, fraction: float) -> None:
        """Tell what follows a schedule (the `tapered` readout) how much of training, 0..1, is done.

        To be called before every step of training; other configurations ignore it.

        Raises:
            InputError: the fraction is not in 0..1.
        """
        if not 0 <= fraction <= 1:
            raise InputError(f"progress is {fraction!r}; expected the fraction of training that is done, 0..1")
        if isinstance(self.readout_norm, TaperedNorm):
            self.readout_norm.set_progress(fraction)

    def looped(self, name: str | None = None) -> Looped:
        """This model as a `Looped`."""
        return Looped(
            embed=self.embed,
            step=self.step,
            readout=self.readout,
            trained_loops=self.config.trained_loops,
            name=name or f"looped_transformer/{self.config.readout}",
            vocab_size=self.config.vocab_size,
            module=self,
            embed_masked=self.embed_masked,
            # With a norm at the loop boundary the step is no longer a sum of residual branches.
            branches=self.branches if self.loop_norm is None else None,
            decode=StepwiseDecode(),
            cache_slots=slots_in_use,
            exit_probabilities=None if self.exit_gate is None else self.exit_probabilities,
            choose_exit=None if self.exit_gate is None else self.choose_exit,
            declares=self._traits(),
        )

    def _traits(self) -> frozenset[str]:
        """What this model admits to; see loopverify.checks."""
        traits = {
            "loop_readout": self.config.readout == "final_only",
            "uneven_loops": self.loop_norm is not None and self.config.norm_at == "start",  # loop 1 has no norm
        }
        return frozenset(trait for trait, there in traits.items() if there)

    def shown(self, state: Tensor, loop: int, loops: int) -> Tensor:
        """What exit `loop` of a run of `loops` gives to the head and to the exit gate, (..., D)."""
        if self.readout_norm is None or (self.config.readout == "final_only" and loop < loops):
            return state
        shown: Tensor = self.readout_norm(state)
        return shown

    def _exit_logits(self, trace: Trace) -> Tensor:
        """The gate at every exit but the last, (B, T, K - 1)."""
        if self.exit_gate is None:
            raise InputError("this model has no exit gate; build it with TransformerConfig(exit_gate=True)")
        with nullcontext() if trace.grad else torch.no_grad():
            exits = range(1, trace.loops + 1)
            logits = [self.exit_gate(self.shown(trace.states[k], k, trace.loops)) for k in exits]
            return torch.stack(logits, -1)[..., :-1]

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Tables (..., C / 2) of int64 positions (...)."""
        channels = self.config.d_model // self.config.heads
        pairs = torch.arange(0, channels, 2, device=positions.device, dtype=torch.float32)
        angles = positions[..., None].float() * self.config.rope_theta ** (-pairs / channels)
        return angles.cos(), angles.sin()
