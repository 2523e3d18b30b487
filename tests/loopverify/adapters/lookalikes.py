"""Small modules built like Ouro and Huginn: the attribute names, call signatures and traps of their public code.

Written from the papers' descriptions (arXiv:2510.25741, arXiv:2502.05171) for the tests of their adapters; they hold
no trained weights and are not meant for anything else. Shapes: B batch, T tokens, D channels, N heads, C = D / N.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def tiny_ouro(loops: int = 3, seed: int = 0, gate: type[nn.Linear] | None = None) -> OuroLike:
    """An Ouro whose gate computes in float32, or, with gate=nn.Linear as in the public code, in the states' dtype."""
    torch.manual_seed(seed)
    config = SimpleNamespace(
        vocab_size=29, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, total_ut_steps=loops
    )
    config.early_exit_threshold, config.gate = 1.0, gate or WideGate
    return _spread(OuroLike(config)).eval()


def tiny_huginn(loops: int = 3, seed: int = 0) -> HuginnLike:
    torch.manual_seed(seed)
    config = SimpleNamespace(vocab_size=29, n_embd=16, num_attention_heads=2, block_size=32, mean_recurrence=loops)
    config.layers = (1, 2, 1)  # prelude, core, coda
    config.mean_backprop_depth = 2
    config.init_values = {"std": 0.4, "embed_scale": 4.0}
    config.test_time_noise = 0
    return _spread(HuginnLike(config)).eval()


def _spread(module: nn.Module) -> nn.Module:
    """Weights large enough that every part of the module shows in its output."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


class Norm(nn.Module):
    """RMSNorm with a gain, not an nn.RMSNorm, so that it must be recognized by its function."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, hidden_states: Tensor) -> Tensor:
        squares = hidden_states.float().square().mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(squares + self.eps)).to(hidden_states.dtype)


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


def _turn(x_BNTC: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x_BNTC.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


# Ouro ----------------------------------------------------------------------------------------------------------------


class OuroCache:
    """One slot per (loop, layer), indexed loop * layers + layer."""

    def __init__(self) -> None:
        self.key_cache: list[Tensor | None] = []
        self.value_cache: list[Tensor | None] = []

    def update(self, keys: Tensor, values: Tensor, index: int) -> tuple[Tensor, Tensor]:
        while len(self.key_cache) <= index:
            self.key_cache.append(None)
            self.value_cache.append(None)
        if self.key_cache[index] is not None:
            keys = torch.cat([self.key_cache[index], keys], dim=2)
            values = torch.cat([self.value_cache[index], values], dim=2)
        self.key_cache[index], self.value_cache[index] = keys, values
        return keys, values

    def get_seq_length(self) -> int:
        return self.key_cache[0].shape[2] if self.key_cache else 0


class OuroAttention(nn.Module):
    def __init__(self, config: SimpleNamespace, index: int) -> None:
        super().__init__()
        self.config, self.index = config, index
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden_states, position_embeddings, attention_mask, past_key_value=None, current_ut=0, **kwargs):
        B, T, D = hidden_states.shape
        N = self.config.num_attention_heads
        q, k, v = self.qkv(hidden_states).view(B, T, 3, N, D // N).permute(2, 0, 3, 1, 4)
        cos, sin = (table[:, None] for table in position_embeddings)
        q, k = _turn(q, cos, sin), _turn(k, cos, sin)
        if past_key_value is not None:
            k, v = past_key_value.update(k, v, current_ut * self.config.num_hidden_layers + self.index)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        return self.o_proj(mixed.transpose(1, 2).reshape(B, T, D)), None


class OuroLayer(nn.Module):
    """Sandwich norms: one before and one after each branch, none on the stream."""

    def __init__(self, config: SimpleNamespace, index: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = OuroAttention(config, index), Mlp(config.hidden_size)
        self.input_layernorm, self.input_layernorm_2 = Norm(config.hidden_size), Norm(config.hidden_size)
        self.post_attention_layernorm = Norm(config.hidden_size)
        self.post_attention_layernorm_2 = Norm(config.hidden_size)
        self.attention_type = "full_attention"

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        position_ids=None,
        past_key_value=None,
        use_cache=False,
        cache_position=None,
        position_embeddings=None,
        **kwargs,
    ):
        attended, _ = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states),
            attention_mask=attention_mask,
            past_key_value=past_key_value,
            position_embeddings=position_embeddings,
            **kwargs,
        )
        hidden_states = hidden_states + self.input_layernorm_2(attended)
        return hidden_states + self.post_attention_layernorm_2(self.mlp(self.post_attention_layernorm(hidden_states)))


class Rotary(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 100.0 ** (-torch.arange(0, channels, 2) / channels), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None] * self.inv_freq
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class WideGate(nn.Linear):
    """A linear map computed in float32 or wider, so that exit probabilities also sum to 1 in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.linear(x.to(wide), self.weight.to(wide), self.bias.to(wide))


class OuroBody(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(OuroLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size)
        self.rotary_emb = Rotary(config.hidden_size // config.num_attention_heads)
        self.early_exit_gate = config.gate(config.hidden_size, 1)
        self.total_ut_steps = config.total_ut_steps  # a copy: a later change of the configuration has no effect

    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=None):
        if use_cache and past_key_values is None:
            past_key_values = OuroCache()
        past = past_key_values.get_seq_length() if past_key_values is not None else 0
        position_ids = torch.arange(past, past + input_ids.shape[1])[None]
        hidden_states = self.embed_tokens(input_ids)
        visible = torch.arange(past + input_ids.shape[1])[None, :] <= position_ids[0][:, None]
        if attention_mask is not None:
            visible = visible & attention_mask[:, None, None, :].bool()
        rope = self.rotary_emb(hidden_states, position_ids)
        hidden_states_list, gate_list = [], []
        for current_ut in range(self.total_ut_steps):
            for layer in self.layers:
                hidden_states = layer(
                    hidden_states,
                    attention_mask=visible,
                    position_ids=position_ids,
                    past_key_value=past_key_values,
                    use_cache=use_cache,
                    position_embeddings=rope,
                    current_ut=current_ut,
                )
            hidden_states = self.norm(hidden_states)
            hidden_states_list.append(hidden_states)
            gate_list.append(self.early_exit_gate(hidden_states))
        output = SimpleNamespace(last_hidden_state=hidden_states, past_key_values=past_key_values)
        return output, hidden_states_list, gate_list


class OuroLike(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        self.model = OuroBody(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.early_exit_threshold = config.early_exit_threshold

    def forward(
        self,
        input_ids,
        attention_mask=None,
        past_key_values=None,
        labels=None,
        use_cache=None,
        exit_at_step=None,
        exit_threshold=None,
    ):
        output, hidden_states_list, gate_list = self.model(input_ids, attention_mask, past_key_values, use_cache)
        remaining, probabilities = torch.ones(input_ids.shape), []
        for step, gate in enumerate(gate_list):
            share = torch.sigmoid(gate.squeeze(-1)) if step < len(gate_list) - 1 else torch.ones(input_ids.shape)
            probabilities.append(share * remaining)
            remaining = remaining * (1 - share)
        loss = None
        if labels is not None:  # the training path: a mixture of all exits
            logits = sum(
                weight[..., None] * self.lm_head(hidden)
                for weight, hidden in zip(probabilities, hidden_states_list, strict=True)
            )
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        elif exit_at_step is not None:
            logits = self.lm_head(hidden_states_list[exit_at_step])
        else:  # the inference path: for every token the first exit that reaches the threshold
            threshold = self.early_exit_threshold if exit_threshold is None else exit_threshold
            chosen = hidden_states_list[-1]
            total = torch.stack(probabilities).sum(0)
            for hidden, weight in zip(reversed(hidden_states_list), reversed(probabilities), strict=True):
                chosen = torch.where((total >= threshold)[..., None], hidden, chosen)
                total = total - weight
            logits = self.lm_head(chosen)
        return SimpleNamespace(logits=logits, loss=loss, past_key_values=output.past_key_values)


# Huginn --------------------------------------------------------------------------------------------------------------


class HuginnCache:
    """cache[index of the block or recurrence][position]; the coda's indices are negative."""

    def __init__(self) -> None:
        self.seen = 0
        self.key_cache: dict[int, dict[int, Tensor]] = {}
        self.value_cache: dict[int, dict[int, Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, step_idx: Tensor) -> tuple[Tensor, Tensor]:
        index = int(step_idx)
        if index == 0:
            self.seen += keys.shape[-2]
        for store, new in ((self.key_cache, keys), (self.value_cache, values)):
            for offset, entry in enumerate(new.unbind(dim=-2)):
                position = self.seen - new.shape[-2] + offset
                assert position not in store.setdefault(index, {}), "a slot is written twice in a forward"
                store[index][position] = entry
        stacked = (torch.stack(list(store[index].values()), dim=-2) for store in (self.key_cache, self.value_cache))
        return tuple(stacked)

    def get_seq_length(self) -> int:
        return self.seen


class HuginnAttention(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.Wqkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x, freqs_cis, block_idx, mask=None, past_key_values=None):
        B, T, D = x.shape
        q, k, v = self.Wqkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        cos, sin = freqs_cis[:, None, :, 0, :, 0], freqs_cis[:, None, :, 0, :, 1]
        q, k = _turn(q, cos, sin), _turn(k, cos, sin)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, block_idx)
        lower_right = torch.ones(T, k.shape[2], dtype=torch.bool).tril(k.shape[2] - T)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=lower_right)
        return self.proj(mixed.transpose(1, 2).reshape(B, T, D))


class SandwichBlock(nn.Module):
    """Norms on the stream itself: norm_2 and norm_4 come after the residual additions."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.norm_1, self.norm_2, self.norm_3, self.norm_4 = (Norm(config.n_embd) for _ in range(4))
        self.attn, self.mlp = HuginnAttention(config), Mlp(config.n_embd)

    def forward(self, x, freqs_cis, step_idx, mask=None, past_key_values=None):
        x = self.norm_2(self.attn(self.norm_1(x), freqs_cis, step_idx, mask, past_key_values) + x)
        return self.norm_4(self.mlp(self.norm_3(x)) + x)


class HuginnLike(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        prelude, core, coda = (nn.ModuleList(SandwichBlock(config) for _ in range(n)) for n in config.layers)
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "prelude": prelude,
                "adapter": nn.Linear(2 * config.n_embd, config.n_embd),
                "core_block": core,
                "coda": coda,
                "ln_f": Norm(config.n_embd),
            }
        )
        self.emb_scale = config.init_values["embed_scale"]
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        channels = config.n_embd // config.num_attention_heads
        angles = torch.arange(config.block_size)[:, None] * 100.0 ** (-torch.arange(0, channels, 2) / channels)
        self.register_buffer("freqs_cis", torch.stack([angles.cos(), angles.sin()], dim=-1)[None, :, None])

    def initialize_state(self, input_embeds: Tensor, scale: float = 1.0) -> Tensor:
        std = self.config.init_values["std"] * scale
        x = torch.randn_like(input_embeds)
        nn.init.trunc_normal_(x, mean=0.0, std=std, a=-3 * std, b=3 * std)
        return x * self.emb_scale

    def forward(
        self,
        input_ids,
        input_states=None,
        attention_mask=None,  # accepted and ignored
        labels=None,
        num_steps=None,
        past_key_values=None,
        use_cache=False,
        cache_position=None,
    ):
        seen = slice(0, input_ids.shape[1]) if cache_position is None else cache_position
        freqs_cis = self.freqs_cis[:, seen]
        if use_cache and past_key_values is None:
            past_key_values = HuginnCache()
        input_embeds, block_idx = self.transformer.wte(input_ids) * self.emb_scale, torch.tensor(-1)
        for block in self.transformer.prelude:
            block_idx += 1
            input_embeds = block(input_embeds, freqs_cis, block_idx, None, past_key_values)
        x = self.iterate_forward(input_embeds, input_states, freqs_cis, block_idx, past_key_values, num_steps)
        latent_states, block_idx = x.clone().detach(), torch.tensor(0)
        for block in self.transformer.coda:
            block_idx -= 1
            x = block(x, freqs_cis, block_idx, None, past_key_values)
        logits = self.lm_head(self.transformer.ln_f(x)).float()
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return SimpleNamespace(logits=logits, loss=loss, past_key_values=past_key_values, latent_states=latent_states)

    def iterate_forward(self, input_embeds, input_states, freqs_cis, block_idx, past_key_values, num_steps):
        x = self.initialize_state(input_embeds) if input_states is None else input_states.clone()
        if num_steps is None:
            silent, recorded = self.randomized_iteration_sampler()
        elif hasattr(num_steps, "__len__"):
            silent, recorded = num_steps
        else:  # a plain number of loops: no gradients
            silent, recorded = num_steps, 0
        for loop in range(silent + recorded):
            with torch.set_grad_enabled(torch.is_grad_enabled() and loop >= silent):
                x = self.transformer.adapter(torch.cat([x, input_embeds], dim=-1))
                for block in self.transformer.core_block:
                    block_idx += 1
                    x = block(x, freqs_cis, block_idx, None, past_key_values)
        return self.transformer.ln_f(x)  # the first of its two calls, for any number of loops

    def randomized_iteration_sampler(self) -> tuple[int, int]:
        if not self.training:
            return self.config.mean_recurrence, 0
        sampled = int(torch.poisson(torch.tensor(float(self.config.mean_recurrence)))) + 1
        return max(sampled - self.config.mean_backprop_depth, 0), min(sampled, self.config.mean_backprop_depth)
