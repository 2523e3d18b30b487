"""The block of the reference transformer on cached sequences: one loop for any choice of tokens of a batch.

The weights are the layers' own; only attention is written anew, because keys come from the cache and not from the
tokens at hand. Prefill, one new token and the later loops of earlier tokens are all the same call.

Shapes: R rows, q columns of each, L columns held, N heads, C channels a head, D channels.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from loopverify.generation.cache import Cache
from loopverify.models import LoopedTransformer
from loopverify.models.layers import Context, DecoderLayer, _rotate

__all__ = ["propagate", "run_loop"]


def run_loop(module: LoopedTransformer, cache: Cache, loop: int, rows: Tensor, columns: Tensor) -> None:
    """Take the tokens at rows (R,), columns (R, q) from loop - 1 to `loop`, in the cache.

    All tokens that they attend to must have reached `loop`, or be among them.
    """
    state = _entering(module, cache.states(rows, columns), loop)
    context = _context(module, cache, rows, columns)
    if module.damping is not None:
        state = state + module.damping(state, context)
    for index, layer in enumerate(module.layers):
        assert isinstance(layer, DecoderLayer)
        state = state + _attention(layer, state, context, cache, (loop, index), rows, columns)
        state = state + layer.mlp(state, context)
    if module.loop_norm is not None and module.config.norm_at == "end":
        state = module.loop_norm(state)
    cache.reach(loop, rows, columns, state)


def propagate(module: LoopedTransformer, cache: Cache, source: int, rows: Tensor, columns: Tensor) -> None:
    """Fill the slots of all loops after `source` with the keys and values of H_source itself, at columns (R, q).

    As if every later sublayer added nothing (the state propagation of CALM, arXiv:2207.07061). The layers are the same
    in every loop: one projection a layer serves all of them.
    """
    state = _entering(module, cache.states(rows, columns), source + 1)
    context = _context(module, cache, rows, columns)
    for index, layer in enumerate(module.layers):
        assert isinstance(layer, DecoderLayer)
        _, keys, values = _projected(layer, state, context)
        for loop in range(source + 1, cache.loops + 1):
            cache.write(loop, index, rows, columns, keys, values)


def _entering(module: LoopedTransformer, state: Tensor, loop: int) -> Tensor:
    """What the first layer of a loop is given."""
    if module.loop_norm is None or module.config.norm_at == "end" or loop == 1:
        return state
    normed: Tensor = module.loop_norm(state)
    return normed


def _context(module: LoopedTransformer, cache: Cache, rows: Tensor, columns: Tensor) -> Context:
    positions = cache.positions[rows[:, None], columns]
    return Context(module._rope(positions[:, None, :]), cache.visible(rows, columns))


def _attention(
    layer: DecoderLayer,
    state: Tensor,
    context: Context,
    cache: Cache,
    slot: tuple[int, int],
    rows: Tensor,
    columns: Tensor,
) -> Tensor:
    queries, keys, values = _projected(layer, state, context)
    cache.write(*slot, rows, columns, keys, values)
    mixed = F.scaled_dot_product_attention(queries, *cache.read(*slot, rows), attn_mask=context.mask)
    return layer._added(layer.attention_mix.out(mixed.transpose(1, 2).reshape(state.shape)), layer.attention_out_norm)


def _projected(layer: DecoderLayer, state: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each (R, N, q, C), turned to their positions."""
    mix = layer.attention_mix
    R, q, D = state.shape
    heads = mix.qkv(layer.attention_norm(state)).view(R, q, 3, mix.heads, D // mix.heads).permute(2, 0, 3, 1, 4)
    queries, keys, values = heads
    return _rotate(queries, context.rope), _rotate(keys, context.rope), values
