"""Generation with a cache: greedy or sampled, prompts of different lengths, tokens that leave early.

Shapes: B prompts, N new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.generation.decoder import Decoder, transformer
from loopverify.generation.exits import EarlyExit
from loopverify.looped import Looped
from loopverify.models import LoopedTransformer
from loopverify.probes.readonly import untouched

__all__ = ["Generated", "cached", "generate", "padded"]

Prompts = Tensor | Sequence[Tensor | Sequence[int]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Generated:
    """What was generated, and at what depth."""

    tokens: Tensor
    """The new tokens, (B, N) int64."""
    exits: Tensor
    """The loop that each was read from, 1..K, (B, N) int64."""
    executed: int
    """Loops that were run, counted in tokens, the prompts included: more than the exits say where skipped loops had to
    be made up for."""


def generate(
    model: LoopedTransformer | Looped,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    loops: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    early_exit: EarlyExit | None = None,
) -> Generated:
    """Continue prompts, token by token, with a key and a value for every (loop, layer) kept.

    Args:
        model: a LoopedTransformer or its `looped()`; run in evaluation mode and left as it was.
        prompts: (B, T) int64, or B sequences of token ids of any lengths >= 1 (shorter ones are padded on the left).
        max_new_tokens: N.
        loops: K; the trained loops when omitted.
        temperature: 0 takes the likeliest token; otherwise logits are divided by it before sampling.
        top_k: sample from so many likeliest tokens; None: from all.
        generator: of the samples, on the model's device; None: torch's global one.
        early_exit: when a token leaves before loop K. Prompts run at full depth but for their last token.

    Raises:
        InputError: another model, empty prompts, or settings out of range.
    """
    _check(max_new_tokens, temperature, top_k)
    module = transformer(model)
    tokens, mask = padded(prompts, module.embedding.weight.device)
    with untouched(module.looped()), torch.no_grad():
        decoder = Decoder(module, len(tokens), loops, early_exit)
        if tokens.shape[1] > 1:
            decoder.extend(tokens[:, :-1], mask[:, :-1])
        last, made, exits = tokens[:, -1], [], []
        for _ in range(max_new_tokens):
            step = decoder.step(last)
            last = _choose(step.logits, temperature, top_k, generator)
            made.append(last)
            exits.append(step.exits)
    return Generated(tokens=torch.stack(made, 1), exits=torch.stack(exits, 1), executed=decoder.executed)


def padded(prompts: Prompts, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Prompts as one batch, padded on the left with token 0: (B, T) int64, and a mask (B, T) bool, True at real tokens.

    Raises:
        InputError: no prompts, or an empty one.
    """
    rows = [torch.as_tensor(prompt, device=device) for prompt in prompts]
    for place, row in enumerate(rows):
        if row.ndim != 1 or not len(row) or row.is_floating_point():
            raise InputError(
                f"prompt {place} is {row.dtype} {tuple(row.shape)}; expected a sequence of at least one token id"
            )
    if not rows:
        raise InputError("no prompts; expected at least one sequence of token ids")
    longest = max(map(len, rows))
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64, device=device)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for place, row in enumerate(rows):
        tokens[place, longest - len(row) :] = row
        mask[place, longest - len(row) :] = True
    return tokens, mask


def cached(module: LoopedTransformer, name: str | None = None) -> Looped:
    """The model's `Looped` view with cached decoding declared, so that the checks of caches judge it."""

    def decode(tokens: Tensor, cache: Decoder | None, loops: int) -> tuple[Tensor, Decoder]:
        decoder = Decoder(module, len(tokens), loops) if cache is None else cache
        if decoder.loops != loops:
            raise InputError(f"a cache of {decoder.loops} loops to continue with {loops}; expected the same number")
        return decoder.logits(decoder.extend(tokens)), decoder

    def slots(cache: Decoder) -> int:
        return cache.cache.slots

    return replace(module.looped(name), decode=decode, cache_slots=slots)


def _check(max_new_tokens: int, temperature: float, top_k: int | None) -> None:
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens is {max_new_tokens}; expected an integer >= 1")
    if not 0 <= temperature < float("inf"):
        raise InputError(f"temperature is {temperature}; expected 0 (the likeliest token) or a positive number")
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k is {top_k}; expected an integer >= 1, or None to sample from all tokens")


def _choose(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """A token for every row of (B, V), (B,) int64."""
    if temperature == 0:
        return logits.argmax(-1)
    scaled = logits.float() / temperature
    if top_k is not None and top_k < scaled.shape[-1]:
        values, places = scaled.topk(top_k, dim=-1)
        drawn = torch.multinomial(values.softmax(-1), 1, generator=generator)
        return places.gather(-1, drawn)[:, 0]
    return torch.multinomial(scaled.softmax(-1), 1, generator=generator)[:, 0]
