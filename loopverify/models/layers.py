"""The sublayers of a `LoopedTransformer`: each returns what is added to the stream, not the sum.

Shapes: B batch, T tokens, D channels, N heads, C channels a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopverify.models.cache import Chunk
from loopverify.models.config import TransformerConfig

__all__ = ["Attention", "Context", "Damping", "DecoderLayer", "Sublayer", "SwiGLU", "dropout"]


@dataclass(frozen=True, eq=False)
class Context:
    """What every step of one run needs besides the state."""

    rope: tuple[Tensor, Tensor]
    """Cosine and sine tables: (T, C / 2), or (B, 1, T, C / 2) when padding shifts the positions of a row."""
    mask: Tensor | None = None
    """Who may attend to whom, (B, 1, T, T) bool; None: every token to itself and all before it."""
    chunk: Chunk | None = None
    """In decoding, the memory in which attention keeps the keys and values of these tokens and finds those of earlier
    ones; None: all keys are those of the tokens at hand."""

    def narrowed(self, chunk: Chunk) -> Context:
        """From the context of whole sequences, that of the tokens of a chunk (R, q)."""
        cos, sin = (table[chunk.positions[:, None]] for table in self.rope)
        return replace(self, rope=(cos, sin), mask=chunk.visible, chunk=chunk)


Sublayer = Callable[[Tensor, Context], Tensor]


def dropout(config: TransformerConfig) -> nn.Module:
    """The dropout of a configuration; nothing at all for a rate of 0, which a small model would feel."""
    return nn.Dropout(config.dropout) if config.dropout else nn.Identity()


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
        qkv = self.qkv(x_BTD).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        q, k = _rotate(qkv[:2], context.rope)  # both at once: a small model's time goes into calls
        k, v = (k, qkv[2]) if context.chunk is None else context.chunk.exchange(k, qkv[2])
        mixed = F.scaled_dot_product_attention(
            q,
            k,
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
    """Two pre-norm residual branches; `attention` and `mlp` return what is added to the stream, not the sum.

    With sandwich norms, what a branch adds is normalized, too.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.attention_mix = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.mlp_mix = SwiGLU(config)
        self.attention_out_norm, self.mlp_out_norm = (
            nn.RMSNorm(config.d_model, eps=config.norm_eps) if config.sandwich_norm else None for _ in range(2)
        )
        self.drop = dropout(config)

    def forward(self, state: Tensor, context: Context) -> Tensor:
        """(B, T, D) -> the state with both branches added, (B, T, D)."""
        attended = state + self.attention(state, context)
        if context.chunk is not None and context.chunk.keys_only:
            return state
        return attended + self.mlp(attended, context)

    def attention(self, state: Tensor, context: Context) -> Tensor:
        return self._added(self.attention_mix(self.attention_norm(state), context), self.attention_out_norm)

    def mlp(self, state: Tensor, context: Context) -> Tensor:
        return self._added(self.mlp_mix(self.mlp_norm(state)), self.mlp_out_norm)

    def _added(self, mixed: Tensor, norm: nn.RMSNorm | None) -> Tensor:
        # In the dtype of its gain: RMSNorm is not fused for another one, such as autocast's.
        added: Tensor = self.drop(mixed if norm is None else norm(mixed.to(norm.weight.dtype)))
        return added


class Damping(nn.Module):
    """ρ·H as a residual branch, (ρ − 1)·H, with one learned factor ρ = σ(logit): the carry of the loop becomes ρ."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(factor).logit())

    @property
    def factor(self) -> Tensor:
        """ρ, a scalar in (0, 1)."""
        return torch.sigmoid(self.logit)

    def forward(self, state: Tensor, context: Context) -> Tensor:
        return -torch.sigmoid(-self.logit) * state


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the channel pairs (c, c + C/2) of every position of (..., T, C) by its angles."""
    cos, sin = (table.to(x.dtype) for table in rope)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
