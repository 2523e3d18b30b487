"""The paper's looped transformer (Sharma & Vu 2026, section 3): one pre-norm decoder stack applied K times.

Shapes: B batch, T tokens, D channels, N heads, C channels a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopverify.errors import InputError, unknown
from loopverify.looped import Looped

__all__ = ["READOUTS", "Context", "LoopedTransformer", "TransformerConfig"]

READOUTS = ("rmsnorm", "raw", "layernorm", "final_only")
INTER_LOOP = ("none", "own", "shared")


@dataclass(frozen=True, eq=False)
class Context:
    """What every step of one run needs besides the state."""

    rope: tuple[Tensor, Tensor]
    """Cosine and sine tables: (T, C / 2), or (B, 1, T, C / 2) when padding shifts the positions of a row."""
    mask: Tensor | None = None
    """Who may attend to whom, (B, 1, T, T) bool; None: every token to itself and all before it."""


Sublayer = Callable[[Tensor, Context], Tensor]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Shape and interfaces of a `LoopedTransformer`."""

    vocab_size: int
    d_model: int = 64
    layers: int = 2
    heads: int = 2
    d_ff: int = 160
    """Width of the SwiGLU branch. The paper's 44M and 129M totals fit 4 * d_model with a tied head."""
    trained_loops: int = 4
    readout: Literal["rmsnorm", "raw", "layernorm", "final_only"] = "rmsnorm"
    """`final_only`: raw intermediate exits, an RMSNorm final exit."""
    inter_loop_norm: Literal["none", "own", "shared"] = "none"
    """An RMSNorm of the state at the end of every loop: none (the paper's ablations), a module of its own, or the
    readout's own module (as Ouro does)."""
    tied_head: bool = False
    dropout: float = 0.0
    norm_eps: float = 1e-6
    """Added to the mean square, in units of the squared state."""
    rope_theta: float = 10_000.0
    init_std: float = 0.02

    def __post_init__(self) -> None:
        if self.readout not in READOUTS:
            raise unknown("readout", self.readout, READOUTS)
        if self.inter_loop_norm not in INTER_LOOP:
            raise unknown("inter-loop norm", self.inter_loop_norm, INTER_LOOP)
        for name in ("vocab_size", "d_model", "layers", "heads", "d_ff", "trained_loops"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected an integer >= 1")
        if self.d_model % self.heads or (self.d_model // self.heads) % 2:
            raise InputError(
                f"d_model {self.d_model} over {self.heads} heads; expected an even number of channels a head, "
                "which rotary positions turn in pairs"
            )
        if self.inter_loop_norm == "shared" and self.readout not in ("rmsnorm", "layernorm"):
            raise InputError(
                f"inter_loop_norm 'shared' with readout {self.readout!r}; expected a readout with a norm to share"
            )


class Attention(nn.Module):
    """Causal multi-head self-attention with rotary positions, without biases."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model, bias=False)
        self.out = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        B, T, D = x_BTD.shape
        q, k, v = self.qkv(x_BTD).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            _rotate(q, context.rope),
            _rotate(k, context.rope),
            v,
            attn_mask=context.mask,
            is_causal=context.mask is None,
            dropout_p=self.dropout if self.training else 0.0,
        )
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(B, T, D))
        return out


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), without biases."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.d_model, 2 * config.d_ff, bias=False)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class DecoderLayer(nn.Module):
    """Two pre-norm residual branches; `attention` and `mlp` return what is added to the stream, not the sum."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.attention_mix = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.mlp_mix = SwiGLU(config)
        self.drop = nn.Dropout(config.dropout)

    def attention(self, state: Tensor, context: Context) -> Tensor:
        out: Tensor = self.drop(self.attention_mix(self.attention_norm(state), context))
        return out

    def mlp(self, state: Tensor, context: Context) -> Tensor:
        out: Tensor = self.drop(self.mlp_mix(self.mlp_norm(state)))
        return out


class LoopedTransformer(nn.Module):
    """The reference model. `looped()` is its `Looped` view; the module itself holds the parameters."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.embedding_drop = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.readout_norm = _readout_norm(config)
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

    def embed(self, tokens: Tensor) -> tuple[Tensor, Context]:
        """tokens (B, T) int64 -> H_0 (B, T, D) and the context of T positions."""
        state: Tensor = self.embedding_drop(self.embedding(tokens))
        return state, Context(self._rope(torch.arange(tokens.shape[1], device=tokens.device)))

    def embed_masked(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Context]:
        """As `embed`, for rows with padding: mask (B, T) bool is True at real tokens, which alone are attended to
        and whose positions count from the first real token of their row."""
        state: Tensor = self.embedding_drop(self.embedding(tokens))
        positions = (mask.long().cumsum(1) - 1).clamp_min(0)
        T = tokens.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=tokens.device).tril()
        # A padding token attends to itself, so that its softmax has something to sum over.
        visible = causal & (mask[:, None, None, :] | torch.eye(T, dtype=torch.bool, device=tokens.device))
        return state, Context(self._rope(positions[:, None, :]), visible)

    def step(self, state: Tensor, context: Context, loop: int) -> Tensor:
        """H_{k-1} (B, T, D) -> H_k: the whole stack once, then the inter-loop norm if there is one."""
        for _, sublayer in self._sublayers():
            state = state + sublayer(state, context)
        return state if self.loop_norm is None else self.loop_norm(state)

    def branches(self, state: Tensor, context: Context, loop: int) -> list[tuple[str, Tensor]]:
        """What each sublayer adds to the stream, in order: [(name, (B, T, D)), ...]."""
        added = []
        for name, sublayer in self._sublayers():
            out = sublayer(state, context)
            added.append((name, out))
            state = state + out
        return added

    def readout(self, state: Tensor, context: Context, loop: int, loops: int) -> Tensor:
        """H_k (..., D) -> logits (..., V). `final_only` normalises the last exit of the run, and no other."""
        if self.readout_norm is not None and (self.config.readout != "final_only" or loop == loops):
            state = self.readout_norm(state)
        logits: Tensor = self.head(state)
        return logits

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
        )

    def _sublayers(self) -> Iterator[tuple[str, Sublayer]]:
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            yield f"layers.{index}.attention", layer.attention
            yield f"layers.{index}.mlp", layer.mlp

    def _rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Tables (..., C / 2) of int64 positions (...)."""
        channels = self.config.d_model // self.config.heads
        pairs = torch.arange(0, channels, 2, device=positions.device, dtype=torch.float32)
        angles = positions[..., None].float() * self.config.rope_theta ** (-pairs / channels)
        return angles.cos(), angles.sin()


def _readout_norm(config: TransformerConfig) -> nn.Module | None:
    if config.readout == "raw":
        return None
    if config.readout == "layernorm":
        return nn.LayerNorm(config.d_model, eps=config.norm_eps)
    return nn.RMSNorm(config.d_model, eps=config.norm_eps)


def _rotate(x_BNTC: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the channel pairs (c, c + C/2) of every position by its angles."""
    cos, sin = (table.to(x_BNTC.dtype) for table in rope)
    a, b = x_BNTC.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
