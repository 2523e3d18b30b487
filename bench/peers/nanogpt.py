"""A looped transformer and its training step in plain PyTorch, after nanoGPT's model.py and train.py.

The same model as `loopverify.models.LoopedTransformer` with an RMSNorm readout, parameter by parameter, in one file:
nothing of loopverify is used.
"""

from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor
from torch.nn import functional as F

__all__ = ["GPT", "train_step"]


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1)


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class MLP(nn.Module):
    def __init__(self, n_embd: int, n_hidden: int) -> None:
        super().__init__()
        self.w_gate = nn.Linear(n_embd, n_hidden, bias=False)
        self.w_up = nn.Linear(n_embd, n_hidden, bias=False)
        self.w_down = nn.Linear(n_hidden, n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_down(F.silu(self.w_gate(x)) * self.w_up(x))


class Block(nn.Module):
    def __init__(self, n_embd: int, n_head: int, n_hidden: int) -> None:
        super().__init__()
        self.ln_1 = nn.RMSNorm(n_embd, eps=1e-6)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.ln_2 = nn.RMSNorm(n_embd, eps=1e-6)
        self.mlp = MLP(n_embd, n_hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x), cos, sin)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(
        self, vocab_size: int, n_embd: int, n_layer: int, n_head: int, n_hidden: int, n_loop: int, tied: bool
    ) -> None:
        super().__init__()
        self.n_loop = n_loop
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.h = nn.ModuleList([Block(n_embd, n_head, n_hidden) for _ in range(n_layer)])
        self.ln_f = nn.RMSNorm(n_embd, eps=1e-6)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight
        pairs = torch.arange(0, n_embd // n_head, 2, dtype=torch.float32)
        self.register_buffer("inv_freq", 10_000.0 ** (-pairs / (n_embd // n_head)), persistent=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(idx.size(1), device=idx.device, dtype=torch.float32), self.inv_freq)
        cos, sin = angles.cos(), angles.sin()
        x = self.wte(idx)
        loss = 0.0
        for _ in range(self.n_loop):
            for block in self.h:
                x = block(x, cos, sin)
            logits = self.lm_head(self.ln_f(x))
            loss = loss + F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return loss / self.n_loop


def train_step(model: GPT, optimizer: torch.optim.Optimizer, idx: Tensor, targets: Tensor) -> Tensor:
    loss = model(idx, targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss
