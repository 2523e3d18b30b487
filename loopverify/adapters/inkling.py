"""transformers' `inkling2_loop`: the same layers, passed several times from the same start, with messages in between.

A loop is one pass. Each pass starts from the same stream, that before the loop; what it learns from the previous pass
are messages, computed from that pass's residual blocks: the stream at each block boundary after the first, and at the
end. So the state is not the stream but these blocks: H_k is their concatenation (B, T, blocks * D), the end last. H_0
repeats the stream before the loop once per block; pass 1 takes its start from it and gets no messages. Later passes
normalize the messages, so they read no scale from H_{k-1}. The layers after the loop attend, so a readout needs all
tokens of a row ('contextual_readout').
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopverify.adapters.architecture import Architecture, Options, overridden
from loopverify.adapters.native import OwnForward, attention_masks, initialized, positions_of
from loopverify.looped import Looped

__all__ = ["INKLING", "INKLING_VISION"]


@dataclass(frozen=True, eq=False)
class _AttentionInputs:
    """What every layer needs for its attention."""

    masks: dict[str, Any]
    distance: Tensor
    """Query position minus key position, (T, T)."""
    positions: Tensor


@dataclass(frozen=True, eq=False)
class _Context:
    attention: _AttentionInputs
    start: Tensor
    """The stream (B, T, D) from which every pass starts."""
    blocks: Tensor
    """The residual blocks (B, T, blocks before the loop, D) that exist when a pass starts."""


class _Inkling:
    def __init__(self, module: Any, core: Any) -> None:
        self.core, self.head, self.softcap, self.config = core, module.lm_head, module.logit_softcap, core.config
        first, last = self.config.loop_layer_index_start, self.config.loop_layer_index_end
        self.before, self.looped, self.after = core.layers[:first], core.layers[first:last], core.layers[last:]

    def embed(self, tokens: Tensor) -> tuple[Tensor, _Context]:
        return self.embed_masked(tokens, None)

    def embed_masked(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, _Context]:
        embedded = self.core.embed_tokens(tokens)
        positions = positions_of(tokens, mask)
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        masks = attention_masks(self.config, embedded, mask, positions)
        attention = _AttentionInputs(masks, columns[:, None] - columns[None, :], positions)
        none = embedded.new_zeros(*embedded.shape[:-1], 0, embedded.shape[-1])
        start, blocks = _run(self.before, embedded, none, attention)
        carried = sum(bool(layer.is_block_boundary) for layer in self.looped)
        return start.repeat(1, 1, carried), _Context(attention, start, blocks)

    def step(self, state: Tensor, context: _Context, loop: int) -> Tensor:
        previous = self._blocks(state)
        if loop == 1:
            stream, blocks = _run(self.looped, previous[..., -1, :], context.blocks, context.attention)
        else:
            indices = range(len(self.looped))
            messages = (
                self.core.message_input(previous[..., :-1, :], previous[..., -1, :], index) for index in indices
            )
            stream, blocks = _run(self.looped, context.start, context.blocks, context.attention, messages)
        # The first block that a pass appends is its own start, which the context holds already.
        own = blocks[..., context.blocks.shape[-2] + 1 :, :]
        return torch.cat([own, stream.unsqueeze(-2)], dim=-2).flatten(-2)

    def readout(self, state: Tensor, context: _Context, loop: int, loops: int) -> Tensor:
        own = self._blocks(state)
        blocks = torch.cat([context.blocks, context.start.unsqueeze(-2), own[..., :-1, :]], dim=-2)
        stream, blocks = _run(self.after, own[..., -1, :], blocks, context.attention)
        stream = self.core.final_input(blocks, stream)[0]
        logits: Tensor = self.softcap(self.head(self.core.norm(stream).to(state.dtype)).float())
        return logits

    def cache_slots(self, cache: Any) -> int:
        """Slots of the looped layers that are in use: loops * looped layers in a complete cache."""
        first, last = self.config.loop_layer_index_start, self.config.loop_layer_index_end
        return initialized(cache.layers[first:last]) + initialized(cache.layers[self.config.num_hidden_layers :])

    def _blocks(self, state: Tensor) -> Tensor:
        return state.reshape(*state.shape[:-1], -1, self.config.hidden_size)


def _run(
    layers: Any, stream: Tensor, blocks: Tensor, attention: _AttentionInputs, messages: Iterable[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Apply layers in order; the stream that enters a block boundary becomes a residual block."""
    keywords = [{}] * len(layers) if messages is None else ({"messages": message} for message in messages)
    for layer, keyword in zip(layers, keywords, strict=True):
        following = layer(
            stream,
            blocks,
            **keyword,
            attention_mask=attention.masks[layer.attention_type],
            relative_distance=attention.distance,
            conv_mask=attention.masks["linear_attention"],
            position_ids=attention.positions,
        )
        if layer.is_block_boundary:
            blocks = torch.cat([blocks, stream.unsqueeze(-2)], dim=-2)
        stream = following
    return stream, blocks


def _build(module: Any, core: Any, options: Options) -> Looped:
    view = _Inkling(module, core)
    own = OwnForward(module=module, set_loops=lambda loops: overridden(view.config, loop_num_passes=loops))
    return Looped(
        embed=view.embed,
        step=view.step,
        readout=view.readout,
        trained_loops=options.loops(view.config.loop_num_passes),
        name=options.name or "inkling2_loop",
        vocab_size=view.head.out_features,  # the embedding may have further, unused rows
        module=module,
        embed_masked=view.embed_masked,
        decode=own.decode,
        cache_slots=view.cache_slots,
        paths=own.paths(),
        declares=frozenset({"contextual_readout", "uneven_loops"}),
    )


def _parts(core: str) -> tuple[str, ...]:
    of_core = (
        "embed_tokens",
        "layers",
        "norm",
        "final_input",
        "message_input",
        "config.loop_layer_index_start",
        "config.loop_layer_index_end",
        "config.loop_num_passes",
    )
    return (*(f"{core}.{part}" for part in of_core), "lm_head", "logit_softcap")


def _build_text(module: Any, options: Options) -> Looped:
    return _build(module, module.model, options)


def _build_vision(module: Any, options: Options) -> Looped:
    return _build(module, module.model.language_model, options)


INKLING = Architecture(name="inkling2_loop", parts=_parts("model"), build=_build_text)
INKLING_VISION = Architecture(
    name="inkling2_loop with vision", parts=_parts("model.language_model"), build=_build_vision
)
