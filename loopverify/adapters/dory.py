"""transformers' `dory`: input layers, a recurrent section with input injection, output layers.

H_0 is the output of the input layers and H_k that of the recurrent section, both before `model.norm`. That one module
has two uses: a loop starts from norm(H_{k-1}) + norm(H_0), and a readout is the output layers, the norm, the head. A
state taken after the norm would have lost its scale and would be normalized twice. The output layers attend, so a
readout needs all tokens of a row ('contextual_readout').
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from loopverify.adapters.architecture import Architecture, Options, overridden
from loopverify.adapters.native import OwnForward, attention_masks, initialized, positions_of
from loopverify.looped import Looped

__all__ = ["DORY"]


@dataclass(frozen=True, eq=False)
class _Context:
    masks: dict[str, Any]
    rope: dict[str, tuple[Tensor, Tensor]]
    injected: Tensor
    """norm(H_0), which every loop adds to its input."""


class _Dory:
    def __init__(self, module: Any) -> None:
        self.core, self.head, self.config = module.model, module.lm_head, module.config
        start, count = self.config.n_input_layers, self.config.n_recurrent_layers
        self.input_layers = self.core.layers[:start]
        self.recurrent_layers = self.core.layers[start : start + count]
        self.output_layers = self.core.layers[len(self.core.layers) - self.config.n_output_layers :]

    def embed(self, tokens: Tensor) -> tuple[Tensor, _Context]:
        return self.embed_masked(tokens, None)

    def embed_masked(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, _Context]:
        state = self.core.embed_tokens(tokens)
        positions = positions_of(tokens, mask)
        masks = attention_masks(self.config, state, mask, positions)
        kinds = {layer.attention_type for layer in self.core.layers}
        rope = {kind: self.core.rotary_emb(state, positions, kind) for kind in kinds}
        for layer in self.input_layers:
            state = _apply(layer, state, masks, rope)
        return state, _Context(masks, rope, self.core.norm(state))

    def step(self, state: Tensor, context: _Context, loop: int) -> Tensor:
        state = self.core.norm(state) + context.injected
        for layer in self.recurrent_layers:
            state = _apply(layer, state, context.masks, context.rope)
        return state

    def readout(self, state: Tensor, context: _Context, loop: int, loops: int) -> Tensor:
        for layer in self.output_layers:
            state = _apply(layer, state, context.masks, context.rope)
        logits: Tensor = self.head(self.core.norm(state))
        return logits

    def cache_slots(self, cache: Any) -> int:
        """Slots of the recurrent section that are in use: loops * recurrent layers in a complete cache."""
        first = self.config.n_input_layers
        own = cache.layers[first : first + self.config.n_recurrent_layers]
        copies = cache.layers[self.config.num_hidden_layers :]
        return initialized(own) + initialized(copies)


def _apply(layer: Any, state: Tensor, masks: dict[str, Any], rope: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
    kind = layer.attention_type
    following: Tensor = layer(state, attention_mask=masks[kind], position_embeddings=rope[kind])
    return following


def _build(module: nn.Module, options: Options) -> Looped:
    view = _Dory(module)
    own = OwnForward(module=module, set_loops=lambda loops: overridden(view.config, n_recurrent_loops=loops))
    traits = {"contextual_readout"}
    if view.config.recurrent_kv_cache_mode == "last_loop":
        traits.add("last_loop_cache")
    return Looped(
        embed=view.embed,
        step=view.step,
        readout=view.readout,
        trained_loops=options.loops(view.config.n_recurrent_loops),
        name=options.name or "dory",
        vocab_size=view.core.embed_tokens.num_embeddings,
        module=module,
        embed_masked=view.embed_masked,
        decode=own.decode,
        cache_slots=view.cache_slots,
        paths=own.paths(),
        declares=frozenset(traits),
    )


DORY = Architecture(
    name="dory",
    parts=(
        "model.embed_tokens",
        "model.layers",
        "model.norm",
        "model.rotary_emb",
        "lm_head",
        "config.n_input_layers",
        "config.n_recurrent_layers",
        "config.n_output_layers",
        "config.n_recurrent_loops",
        "config.recurrent_kv_cache_mode",
    ),
    build=_build,
)
