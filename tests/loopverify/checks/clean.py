"""Looped models of different families without a fault: no check may trip on them.

Shapes: B batch, T tokens, D channels, N heads, C channels a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import loopverify as lv
from loopverify.models import LoopedTransformer, TransformerConfig

V, D = 23, 16
SHAPE = {"vocab_size": V, "d_model": D, "layers": 2, "heads": 2, "d_ff": 24, "trained_loops": 3, "init_std": 0.1}
Cache = dict[Any, tuple[Tensor, Tensor]]


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the channel pairs (c, c + C/2) of every position by its angles."""
    cos, sin = (table.to(x) for table in rope)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class CachedTransformer(LoopedTransformer):
    """The reference transformer with a complete key/value cache, one slot for every (loop, layer).

    What a fault would change is in methods of its own: slot, past, positions, visible.
    """

    def __init__(self, **overrides: Any) -> None:
        super().__init__(TransformerConfig(**{**SHAPE, **overrides}))

    def slot(self, loop: int, layer: int) -> Any:
        return (loop, layer)

    def past(self, cache: Cache) -> int:
        return next(iter(cache.values()))[0].shape[2] if cache else 0

    def positions(self, past: int, new: int) -> Tensor:
        return torch.arange(past, past + new)

    def visible(self, keys: int, new: int) -> Tensor:
        return torch.ones(new, keys, dtype=torch.bool).tril(keys - new)

    def decode(self, tokens: Tensor, cache: Cache | None, loops: int) -> tuple[Tensor, Cache]:
        cache = dict(cache or {})
        positions = self.positions(self.past(cache), tokens.shape[1])
        state, rope = self.embedding(tokens), self.rope(positions)
        for loop in range(1, loops + 1):
            for index, layer in enumerate(self.layers):
                state = state + self.attend(layer, state, rope, cache, self.slot(loop, index))
                state = state + layer.mlp(state, None)
            state = state if self.loop_norm is None else self.loop_norm(state)
        return self.readout(state, None, loops, loops), cache

    def attend(self, layer: Any, state: Tensor, rope: tuple[Tensor, Tensor], cache: Cache, slot: Any) -> Tensor:
        B, t, _ = state.shape
        heads, mix = self.config.heads, layer.attention_mix
        qkv = mix.qkv(layer.attention_norm(state)).view(B, t, 3, heads, D // heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = rotate(q, rope), rotate(k, rope)
        self.store(cache, slot, k, v)
        keys, values = cache[slot]
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=self.visible(keys.shape[2], t))
        return mix.out(mixed.transpose(1, 2).reshape(B, t, D))

    def store(self, cache: Cache, slot: Any, k: Tensor, v: Tensor) -> None:
        old = cache.get(slot)
        cache[slot] = (k, v) if old is None else (torch.cat([old[0], k], 2), torch.cat([old[1], v], 2))

    def full(self, tokens: Tensor, loops: int) -> Tensor:
        """The model's own forward."""
        state, context = self.embed(tokens)
        for loop in range(1, loops + 1):
            state = self.step(state, context, loop)
        return self.readout(state, context, loops, loops)

    def looped(self, name: str | None = None) -> lv.Looped:
        return replace(
            super().looped(name),
            decode=self.decode,
            cache_slots=len,
            paths={"forward": self.full},
            reports={
                "rms": lambda state: state.square().mean(-1).sqrt(),
                "l2": lambda state: state.norm(dim=-1),
                "a_rad": lambda state, update: (F.normalize(state, dim=-1) * update).sum(-1) / state.shape[-1] ** 0.5,
            },
        )


class GatedTransformer(CachedTransformer):
    """Exits chosen by a gate on the readout norm, which is therefore called twice per exit."""

    def __init__(self, **overrides: Any) -> None:
        super().__init__(**overrides)
        self.gate = nn.Linear(D, 1)

    def gates(self, trace: lv.Trace) -> Tensor:
        """Probability (B, T, K) of each exit, given that it is reached; in float32."""
        logits = [self.gate(self.readout_norm(state)) for state in trace.states[1:]]
        return torch.cat(logits, -1).float().sigmoid()

    def exit_probabilities(self, trace: lv.Trace) -> Tensor:
        gates = self.gates(trace)
        stay = (1 - gates).cumprod(-1)
        reached = torch.cat([torch.ones_like(stay[..., :1]), stay[..., :-1]], -1)
        return torch.cat([(reached * gates)[..., :-1], reached[..., -1:]], -1)

    def choose_exit(self, trace: lv.Trace, threshold: float) -> Tensor:
        if threshold >= 1:
            return torch.full(trace.tokens.shape, trace.loops)
        left = self.exit_probabilities(trace).double().cumsum(-1)[..., :-1] >= threshold
        return trace.loops - left.cumsum(-1).clamp_max(1).sum(-1)

    def looped(self, name: str | None = None) -> lv.Looped:
        return replace(super().looped(name), exit_probabilities=self.exit_probabilities, choose_exit=self.choose_exit)


class Family(nn.Module):
    """Embedding, a recurrence defined by subclasses, RMSNorm readout."""

    trained_loops = 3

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.norm = nn.RMSNorm(D, eps=1e-6)
        self.head = nn.Linear(D, V, bias=False)

    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        state = self.embedding(tokens)
        return state, state

    def readout(self, state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
        return self.head(self.norm(state))

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        raise NotImplementedError

    def looped(self, name: str | None = None) -> lv.Looped:
        return lv.Looped(
            embed=self.embed,
            step=self.step,
            readout=self.readout,
            trained_loops=self.trained_loops,
            name=name or type(self).__name__.lower(),
        )


class CausalMix(nn.Module):
    """Single-head causal attention without positions."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))


class PostNorm(Family):
    """A block that ends in a norm: it removes scale without a norm module at the loop boundary."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.mlp = CausalMix(), mlp()
        self.first, self.second = nn.LayerNorm(D), nn.LayerNorm(D)

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        state = self.first(state + self.mix(state))
        return self.second(state + self.mlp(state))


class DeepNorm(PostNorm):
    """Post-norm with an up-weighted residual, alpha = (2 N)^(1/2) for N = 3 loops of one layer."""

    alpha = 6**0.5

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        state = self.first(self.alpha * state + self.mix(state))
        return self.second(self.alpha * state + self.mlp(state))


class Sandwich(Family):
    """Norms on both sides of every branch; branches are captured after the second."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.mlp = CausalMix(), mlp()
        self.norms = nn.ModuleList(nn.RMSNorm(D, eps=1e-6) for _ in range(4))

    def branches(self, state: Tensor, context: Any, loop: int) -> list[tuple[str, Tensor]]:
        mixed = self.norms[1](self.mix(self.norms[0](state)))
        return [("mix", mixed), ("mlp", self.norms[3](self.mlp(self.norms[2](state + mixed))))]

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return state + sum(added for _, added in self.branches(state, context, loop))

    def looped(self, name: str | None = None) -> lv.Looped:
        return replace(super().looped(name), branches=self.branches)


class Decay(Family):
    """A decaying linear state, driven by the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.drive = nn.Parameter(torch.rand(D)), CausalMix()

    def step(self, state: Tensor, context: Tensor, loop: int) -> Tensor:
        return self.rate.sigmoid() * state + self.drive(context)


class Injection(Family):
    """Prelude, a core with the prelude's output injected per loop, a fixed initial state, a coda with attention."""

    def __init__(self) -> None:
        super().__init__()
        self.prelude, self.adapter, self.core, self.coda = CausalMix(), nn.Linear(2 * D, D), CausalMix(), CausalMix()
        self.core_norm, self.last_norm = nn.RMSNorm(D, eps=1e-6), nn.RMSNorm(D, eps=1e-6)

    def embed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        state = self.embedding(tokens)
        injected = state + self.prelude(state)
        positions = torch.arange(tokens.shape[1])[:, None] + torch.arange(D)
        return positions.sin().to(injected).expand_as(injected), injected

    def step(self, state: Tensor, context: Tensor, loop: int) -> Tensor:
        x = self.adapter(torch.cat([state, context], -1))
        return self.core_norm(x + self.core(x))

    def readout(self, state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
        x = self.norm(state)
        return self.head(self.last_norm(x + self.coda(x)))

    def looped(self, name: str | None = None) -> lv.Looped:
        return replace(super().looped(name), declares=frozenset({"contextual_readout"}))


class Gru(Family):
    """A gated recurrent cell over loops, applied to each token."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(D, D)

    def step(self, state: Tensor, context: Tensor, loop: int) -> Tensor:
        return self.cell(context.flatten(0, 1), state.flatten(0, 1)).view_as(state)


class StateSpace(Family):
    """A linear recurrence over tokens inside every loop, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.inward, self.outward = nn.Parameter(torch.randn(D)), nn.Linear(D, D), nn.Linear(D, D)
        self.block_norm = nn.LayerNorm(D)

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        x, decay = self.inward(self.block_norm(state)), self.rate.sigmoid()
        h, outputs = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = decay * h + (1 - decay) * x[:, t]
            outputs.append(h)
        return state + self.outward(torch.stack(outputs, 1).tanh())


class TokenLocal(Family):
    """An MLP applied to each token; the loop index enters through an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.loops = mlp(), nn.Embedding(32, D)

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return state + self.mlp(self.norm(state) + self.loops.weight[min(loop, 31)])

    def embed_masked(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        return self.embed(tokens)

    def looped(self, name: str | None = None) -> lv.Looped:
        # One tensor for all loops: embeddings of loops that are not run get a zero gradient, not a missing one.
        return replace(super().looped(name), embed_masked=self.embed_masked)


class Experts(Family):
    """A mixture of four experts, one per token, chosen by a router."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.router, self.experts = CausalMix(), nn.Linear(D, 4), nn.ModuleList(mlp() for _ in range(4))

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        state = state + self.mix(self.norm(state))
        x = self.norm(state)
        weights = self.router(x).softmax(-1)
        chosen = weights.argmax(-1, keepdim=True)
        outputs = torch.stack([expert(x) for expert in self.experts], -2)
        picked = outputs.gather(-2, chosen[..., None].expand(*chosen.shape, D)).squeeze(-2)
        return state + weights.gather(-1, chosen) * picked


class OffsetGain(Family):
    """A hand-written norm with gain 1 + w, and a raw exit; the step is a closure over its module."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = UnitOffsetNorm()
        self.mix = CausalMix()

    def looped(self, name: str | None = None) -> lv.Looped:
        return lv.Looped(
            embed=lambda tokens: (self.embedding(tokens), None),
            step=lambda state, context, loop: state + self.mix(self.norm(state)),
            readout=lambda state, context, loop, loops: self.head(state),
            trained_loops=2,
            name="offsetgain",
            module=self,
        )


class UnitOffsetNorm(nn.Module):
    """x / rms(x) * (1 + w), computed in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(0.1 * torch.randn(D)), 1e-5

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (wide * (1 + self.weight.to(wide))).to(x)


def _reference(**overrides: Any) -> Callable[[], lv.Looped]:
    return lambda: CachedTransformer(**overrides).looped()


def _uncached(**overrides: Any) -> Callable[[], lv.Looped]:
    return lambda: LoopedTransformer(TransformerConfig(**{**SHAPE, **overrides})).looped()


_BUILDERS: Mapping[str, Callable[[], lv.Looped]] = {
    "rmsnorm": _reference(),
    "final_only": _reference(readout="final_only"),
    "shared_loop_norm": lambda: replace(
        CachedTransformer(inter_loop_norm="shared").looped(), declares=frozenset({"growth_constant"})
    ),
    "raw": _uncached(readout="raw"),
    "layernorm": _uncached(readout="layernorm"),
    "own_loop_norm": _uncached(inter_loop_norm="own"),
    "ouro_shape": _uncached(inter_loop_norm="shared", norm_at="start", sandwich_norm=True, exit_gate=True),
    "tied_head": _uncached(tied_head=True),
    "damped": _uncached(damping=0.9),
    "dynamic_tanh": _uncached(readout="dynamic_tanh"),
    "tapered": _uncached(readout="tapered"),
    "reference_gate": _uncached(exit_gate=True),
    "float64": lambda: LoopedTransformer(TransformerConfig(**SHAPE)).double().looped(),
    "exit_gate": lambda: GatedTransformer().looped(),
    **{
        family.__name__.lower(): lambda family=family: family().looped()
        for family in (PostNorm, DeepNorm, Sandwich, Decay, Injection, Gru, StateSpace, TokenLocal, Experts, OffsetGain)
    },
}


def build(family: str, seed: int) -> lv.Looped:
    """A model of a family, with weights from `seed`."""
    torch.manual_seed(seed)
    return _BUILDERS[family]()


CLEAN = tuple(_BUILDERS)
