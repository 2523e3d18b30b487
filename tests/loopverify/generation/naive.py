"""Decoding with early exits as its rules are stated: one token after the other, lists of keys, no cache, no batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.models import LoopedTransformer


@dataclass
class Naive:
    """One sequence in a transformer of residual loops, or of loops with a norm between them.

    A token's keys in loop k, layer l are entries[k][l][t].
    """

    module: LoopedTransformer
    loops: int
    threshold: float
    missing: str
    factor: float = 1.0
    """What a loop ends by multiplying the state with."""

    @torch.no_grad()
    def run(self, tokens: Tensor, first: int) -> tuple[list[int], list[Tensor]]:
        """Exits and logits of the tokens from place `first` on; those before run at full depth."""
        L = len(self.module.layers)
        entries = [[list[tuple[Tensor, Tensor]]() for _ in range(L)] for _ in range(self.loops + 1)]
        exits, shown = [], []
        for t, token in enumerate(tokens.tolist()):
            state, k = self.module.embedding.weight[token], 0
            while True:
                k += 1
                state = self._normed(state, "start") if k > 1 else state
                for index in range(L):
                    state = self._layer(index, state, t, entries[k][index])
                state = self.factor * self._normed(state, "end")
                logits = self.module.readout(state, None, k, self.loops)  # type: ignore[arg-type]
                a, b = logits.sort(descending=True).values[:2]
                if k == self.loops or (t >= first and float(a - b) > self.threshold):
                    break
            for later in range(k + 1, self.loops + 1):
                for index in range(L):
                    entered = self._normed(state, "start")
                    held = entries[k][index][t] if self.missing == "copy" else self._keys(index, entered, t)
                    entries[later][index].append(held)
            if t >= first:
                exits.append(k)
                shown.append(logits)
        return exits, shown

    def _normed(self, state: Tensor, place: str) -> Tensor:
        norm = self.module.loop_norm if self.module.config.norm_at == place else None
        return state if norm is None else norm(state)

    def _layer(self, index: int, state: Tensor, t: int, held: list[tuple[Tensor, Tensor]]) -> Tensor:
        layer = self.module.layers[index]
        held.append(self._keys(index, state, t))
        D, N = len(state), layer.attention_mix.heads
        x = layer.attention_norm(state)
        query = self._turned(layer.attention_mix.qkv.weight[:D] @ x, t, N)
        heads = []
        for n in range(N):
            keys, values = (torch.stack([pair[i].view(N, -1)[n] for pair in held]) for i in (0, 1))
            weights = (keys @ query.view(N, -1)[n] / math.sqrt(D / N)).softmax(0)
            heads.append(weights @ values)
        state = state + layer.attention_mix.out.weight @ torch.cat(heads)
        gate, up = (layer.mlp_mix.gate_up.weight @ layer.mlp_norm(state)).chunk(2)
        return state + layer.mlp_mix.down.weight @ (gate * gate.sigmoid() * up)

    def _keys(self, index: int, state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        layer = self.module.layers[index]
        _, W_k, W_v = layer.attention_mix.qkv.weight.chunk(3)
        x = layer.attention_norm(state)
        return self._turned(W_k @ x, t, layer.attention_mix.heads), W_v @ x

    def _turned(self, vector: Tensor, t: int, N: int) -> Tensor:
        """Rotary positions as a multiplication of complex numbers."""
        a, b = vector.view(N, 2, -1).unbind(1)
        rates = self.module.config.rope_theta ** (-torch.arange(a.shape[-1], dtype=torch.float64) / a.shape[-1])
        turned = torch.complex(a, b) * torch.polar(torch.ones_like(rates), t * rates)
        return torch.stack([turned.real, turned.imag], 1).flatten()
