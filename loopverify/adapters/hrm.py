"""transformers' `hrm_text`: a slow state z_H and a fast state z_L, refined alternately by two stacks.

One loop is one high cycle: L_cycles applications of the L stack to z_L + z_H, then one of the H stack to z_H + z_L.
Both states enter the next loop, so H_k is their concatenation [z_L, z_H], (B, T, 2D). Each stack ends in a norm. H_k is
taken before it, and the norm is applied where the states are next used: by the following loop and, to z_H only, by the
readout. H_0 = [z_L_init, scaled embedding] is not the output of a stack and is never normalized: loop 1 differs
('uneven_loops').

Only the last L cycles of a loop carry gradients (`L_bp_cycles`), in this view as in the module's own forward; hence
'truncated_gradient'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loopverify.adapters.architecture import Architecture, Options, overridden
from loopverify.adapters.native import OwnForward, attention_masks, initialized, positions_of
from loopverify.looped import Looped

__all__ = ["HRM"]


@dataclass(frozen=True, eq=False)
class _Context:
    mask: Any
    rope: tuple[Tensor, Tensor]
    positions: Tensor


class _Hrm:
    def __init__(self, module: Any) -> None:
        self.core, self.head, self.config = module.model, module.lm_head, module.config

    def embed(self, tokens: Tensor) -> tuple[Tensor, _Context]:
        return self.embed_masked(tokens, None)

    def embed_masked(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, _Context]:
        high = self.core.embed_tokens(tokens) * self.core.embedding_scale
        low = self.core.z_L_init.to(high).expand_as(high)
        positions = positions_of(tokens, mask)
        visible = attention_masks(self.config, high, mask, positions)["full_attention"]
        context = _Context(visible, self.core.rotary_emb(high, positions), positions)
        return torch.cat([low, high], dim=-1), context

    def step(self, state: Tensor, context: _Context, loop: int) -> Tensor:
        low, high = state.chunk(2, dim=-1)
        if loop > 1:  # H_0 is not the output of a stack, and has no norm to be applied
            low, high = self.core.L_module.final_norm(low), self.core.H_module.final_norm(high)
        recording = torch.is_grad_enabled()
        without_gradient = self.config.L_cycles - self._cycles_with_gradient(loop)
        for cycle in range(self.config.L_cycles):
            with torch.set_grad_enabled(recording and cycle >= without_gradient):
                fast = _stack(self.core.L_module, low + high, context)
                low = self.core.L_module.final_norm(fast)
        slow = _stack(self.core.H_module, high + low, context)
        return torch.cat([fast, slow], dim=-1)

    def readout(self, state: Tensor, context: _Context, loop: int, loops: int) -> Tensor:
        _, high = state.chunk(2, dim=-1)
        logits: Tensor = self.head(self.core.H_module.final_norm(high))
        return logits

    def set_loops(self, loops: int) -> Any:
        """Set H_cycles and the number of cache slots, which the configuration derives from it only at construction."""
        slots = self.config.num_layers_per_stack * loops * (self.config.L_cycles + 1)
        return overridden(self.config, H_cycles=loops, num_hidden_layers=slots)

    def _cycles_with_gradient(self, loop: int) -> int:
        counts = self.core.L_bp_cycles_padded
        return int(counts[loop - 1]) if loop <= len(counts) else 1


def _stack(stack: Any, state: Tensor, context: _Context) -> Tensor:
    """The layers of a stack without the norm that ends it."""
    for layer in stack.layers:
        state = layer(
            state, attention_mask=context.mask, position_embeddings=context.rope, position_ids=context.positions
        )
    return state


def _cache_slots(cache: Any) -> int:
    """Slots in use: loops * (L_cycles + 1) * layers per stack in a complete cache."""
    return initialized(cache.layers)


def _build(module: nn.Module, options: Options) -> Looped:
    view = _Hrm(module)
    own = OwnForward(module=module, set_loops=view.set_loops)
    return Looped(
        embed=view.embed,
        step=view.step,
        readout=view.readout,
        trained_loops=options.loops(view.config.H_cycles),
        name=options.name or "hrm_text",
        vocab_size=view.core.embed_tokens.num_embeddings,
        module=module,
        embed_masked=view.embed_masked,
        decode=own.decode,
        cache_slots=_cache_slots,
        paths=own.paths(),
        declares=frozenset({"truncated_gradient", "uneven_loops"}),
    )


HRM = Architecture(
    name="hrm_text",
    parts=(
        "model.embed_tokens",
        "model.embedding_scale",
        "model.rotary_emb",
        "model.L_module.layers",
        "model.L_module.final_norm",
        "model.H_module.layers",
        "model.H_module.final_norm",
        "model.z_L_init",
        "model.L_bp_cycles_padded",
        "lm_head",
        "config.H_cycles",
        "config.L_cycles",
        "config.num_layers_per_stack",
    ),
    build=_build,
)
