"""Models with one planted fault each. What is shown: tokens and masks, readouts, depth and scale, cached decoding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import loopverify as lv
from tests.loopverify.checks.clean import Cache, CachedTransformer, D, Family, V
from tests.loopverify.checks.planting import trips

# --- tokens


@trips("causality", "exit 1 at position 0 differ when later tokens change.*without .* causal mask")
class SeesTheFuture(CachedTransformer):
    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed(tokens)
        T = tokens.shape[1]
        return state, replace(context, mask=torch.ones(T, T, dtype=torch.bool))


@trips("causality", "position [1-4] differ when later tokens change.*shifted.*causal mask")
class SeesTheNextToken(CachedTransformer):
    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed(tokens)
        T = tokens.shape[1]
        return state, replace(context, mask=torch.ones(T, T, dtype=torch.bool).tril(1))


@trips("batch_invariance", "exit 1 of a row of a batch differs from row 0 alone.*statistics taken over the batch")
class CentersOverTheBatch(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        following = super().step(state, context, loop)
        return following - 0.1 * following.mean(0, keepdim=True)


class LearnedPositions(CachedTransformer):
    """Positions in two ways: rotary, and a table that is added to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(0.1 * torch.randn(64, D))

    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed(tokens)
        return state + self.places[: tokens.shape[1]], context


@trips("padding_invariance", "on the left of row 0 .*on the right they change nothing.*counted from the first padding")
class CountsPaddingAsPositions(LearnedPositions):
    def embed_masked(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed_masked(tokens, mask)
        return state + self.places[: tokens.shape[1]], context


@trips("padding_invariance", "an all-True mask changes .*H_0 is the same, so the positions", alone=True)
class OtherPositionsUnderAMask(CachedTransformer):
    def embed_masked(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed_masked(tokens, mask)
        return state, replace(context, rope=self.rope((2 * mask.long().cumsum(1))[:, None, :]))


@trips("padding_invariance", "an all-True mask changes .*H_0 differs.*positions differently", alone=True)
class LearnedPositionsFromOne(LearnedPositions):
    def embed_masked(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed_masked(tokens, mask)
        return state + self.places[mask.long().cumsum(1)], context

    def looped(self, name: str | None = None) -> lv.Looped:
        return replace(super().looped(name), decode=None, cache_slots=None)  # these do not use the table


@trips("mask_influence", "masking the first 2 tokens has no effect.*never reaches the attention", alone=True)
class IgnoresTheMask(CachedTransformer):
    def embed_masked(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        return self.embed(tokens)


@trips("mask_influence", "the content of 2 masked tokens still changes the logits of later tokens.*not all", alone=True)
class MasksAtTheFirstLayerOnly(CachedTransformer):
    def embed_masked(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        _, masked = super().embed_masked(tokens, mask)
        state, context = self.embed(tokens)
        return super().step(state, masked, 1), context


@trips("mask_influence", "all-True mask, token 0 sees token 1, .*replaces the causal mask", alone=True)
class MaskInsteadOfCausality(CachedTransformer):
    def embed_masked(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed_masked(tokens, mask)
        return state, replace(context, mask=mask[:, None, None, :])


@trips("mask_influence", r"all-True mask, token 1 no longer sees token 0, .*the mask is shifted", alone=True)
class MaskHidesARealToken(CachedTransformer):
    def embed_masked(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed_masked(tokens, mask)
        visible = context.mask.clone()
        visible[..., 1:, 0] = False
        return state, replace(context, mask=visible)


@trips("mask_influence", "hides the first 2 tokens, logits of real tokens are not finite.*0 / 0", alone=True)
class MaskedTokensAreNaN(CachedTransformer):
    def embed_masked(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed_masked(tokens, mask)
        return state.masked_fill(~mask[..., None], torch.nan), context


# --- readouts


@trips("logits_form", "exit 1 returns logits that are not finite for a finite state.*look for NaN", alone=True)
class NanInTheHead(CachedTransformer):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.head.weight[3] = torch.nan


@trips("logits_form", r"returns tuple, expected .* shape \(1, 1, 23\).*output of a whole model", alone=True)
class HandsOnATuple(CachedTransformer):
    def readout(self, state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
        return (super().readout(state, context, loop, loops), None)


@trips("logits_form", r"returns torch.float32 \(3, 1, 23\), expected .* shape \(3, 10, 23\).*last token", alone=True)
class ReadsTheLastTokenOnly(CachedTransformer):
    def readout(self, state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
        return super().readout(state[:, -1:], context, loop, loops)


@trips("logits_form", r"\(1, 1, 23\).*of shape \(1, 1, 29\).*vocabulary of the head is not the declared", alone=True)
class DeclaresAnotherVocabulary(CachedTransformer):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V + 6, D)

    def looped(self, name: str | None = None) -> lv.Looped:
        return replace(super().looped(name), vocab_size=V + 6)


@trips("same_readout", "exit 1 of 1 decodes a state differently from exit 3.*temperature for each loop")
class TemperatureByLoop(CachedTransformer):
    def readout(self, state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
        return super().readout(state, context, loop, loops) * loop


@trips("readout_chunks", "logits of chunks of tokens differ.*a norm over positions")
class NormsOverPositions(CachedTransformer):
    def readout(self, state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
        return super().readout(state - state.cumsum(1) / state.shape[1], context, loop, loops)


@trips("paths_agree", "the path 'with labels' at 2 loops differs from the readout of H_2.*mixture over exits")
class MixesExitsWithLabels(CachedTransformer):
    def looped(self, name: str | None = None) -> lv.Looped:
        def with_labels(tokens: Tensor, loops: int) -> Tensor:
            return torch.stack([self.full(tokens, k) for k in range(1, loops + 1)]).mean(0)

        return replace(super().looped(name), paths={"with labels": with_labels})


@trips("loop_count_effect", r"forward gives the same logits for 1 and for 2 loops \((\d+) and \1 module.*construction")
class LoopCountOfTheConfiguration(CachedTransformer):
    def full(self, tokens: Tensor, loops: int) -> Tensor:
        return super().full(tokens, self.config.trained_loops)


# --- depth and scale


@trips("overshoot", r"the loss is not finite from K / r0 = .* on .*grows without bound")
class BlowsUpBeyondTraining(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return super().step(state, context, loop) * (1 + state.square().mean(-1, keepdim=True))


@trips("depth_use", "exit 3 has the logits of exit 1: loops are executed and have no effect.*state of the first loop")
class DecodesTheEmbedding(CachedTransformer):
    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed(tokens)
        self.first = state
        return state, context

    def readout(self, state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
        return super().readout(self.first, context, loop, loops)


@trips("hidden_growth", r"every loop amplifies the norm and no loss sees it: rms .* -> .* over 8 loops.*added again")
class AddsTheResidualAgain(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return state + super().step(state, context, loop)


@trips("growth_law", "claims 'growth_sqrt' but shows linear growth.*holds for random updates")
class ClaimsSquareRootGrowth(Family):
    def __init__(self) -> None:
        super().__init__()
        self.drive = nn.Parameter(torch.randn(D))

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return state + self.norm(state) + self.drive.tanh()

    def looped(self, name: str | None = None) -> lv.Looped:
        return replace(super().looped(name), declares=frozenset({"growth_sqrt"}))


# --- caches


@trips("cached_decode", "token by token, at 2 loops, .* from token [12] on.*one slot per layer")
class OneSlotALayer(CachedTransformer):
    def slot(self, loop: int, layer: int) -> Any:
        return layer


@trips("second_prompt", "prompt 2 of one process, .* differs.*kept in the module")
class KeepsTheLengthOfTheFirstPrompt(CachedTransformer):
    seen = 0

    def past(self, cache: Cache) -> int:
        return self.seen

    def decode(self, tokens: Tensor, cache: Cache | None, loops: int) -> tuple[Tensor, Cache]:
        logits, cache = super().decode(tokens, cache, loops)
        self.seen += tokens.shape[1]
        return logits, cache

    def visible(self, keys: int, new: int) -> Tensor:
        return torch.ones(new, keys, dtype=torch.bool).tril(self.seen)


@trips("chunked_prefill", "in chunks of 3, 1, 4, 2 tokens, .*built for its own length")
class MaskOfTheChunkAlone(CachedTransformer):
    def visible(self, keys: int, new: int) -> Tensor:
        return torch.ones(new, keys, dtype=torch.bool).tril(0 if new > 1 else keys)


@trips("cache_positions", "swapping tokens 2 and 3 moves .*every decoded token gets position 0")
class StuckAtPositionZero(CachedTransformer):
    def positions(self, past: int, new: int) -> Tensor:
        return super().positions(0, new)


@trips("cached_batch", "row 1 of a batch decodes differently from the row alone.*shared by the rows")
class CacheOfTheFirstRow(CachedTransformer):
    def store(self, cache: Cache, slot: Any, k: Tensor, v: Tensor) -> None:
        super().store(cache, slot, k[:1].expand_as(k), v[:1].expand_as(v))


@trips("cache_slots", r"by number of loops are 1: 2, 2: 2, 3: 2; expected 2 per loop.*one slot per layer")
class SizedByLayers(CachedTransformer):
    def slot(self, loop: int, layer: int) -> Any:
        return layer


class LastLoopOnly(CachedTransformer):
    """Keys of earlier tokens always come from their last loop, at every loop of the new ones."""

    def decode(self, tokens: Tensor, cache: Cache | None, loops: int) -> tuple[Tensor, Cache]:
        self.earlier = dict(cache or {})
        return super().decode(tokens, cache, loops)

    def slot(self, loop: int, layer: int) -> Any:
        return layer

    def store(self, cache: Cache, slot: Any, k: Tensor, v: Tensor) -> None:
        cache.pop(slot, None)
        if slot in self.earlier:
            cache[slot] = self.earlier[slot]
        super().store(cache, slot, k, v)


@trips("last_loop_cache", "do not depend on chunks at 1 loop, but do at more.*keys of the last loop.*declare 'last")
class KeepsTheLastLoop(LastLoopOnly):
    pass
