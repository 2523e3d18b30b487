"""Generation with a cache: greedy or sampled, prompts of different lengths, tokens that leave early, rows that stop.

Shapes: B prompts, R of them still going on, N steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from loopverify.arguments import check_count, check_kind
from loopverify.errors import InputError
from loopverify.generation.decoder import Decoder, decodable
from loopverify.generation.early_exit import EarlyExit
from loopverify.generation.prompts import Prompts, padded, token_range
from loopverify.generation.sampling import Sampling
from loopverify.looped import Looped
from loopverify.models import LoopedTransformer
from loopverify.models.decoding import device_of
from loopverify.readonly import untouched

__all__ = ["PAD", "Generated", "NewTokens", "generate", "stream"]

PAD = -1
"""What follows the last token of a row that stopped: no token of any vocabulary."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NewTokens:
    """One step: a token of every row that had not stopped."""

    rows: Tensor
    """Which prompts, (R,) int64, rising."""
    tokens: Tensor
    """Their new tokens, (R,) int64."""
    exits: Tensor
    """The loop that each was read from, 1..K, (R,) int64."""
    executed: int
    """Loops that were run since the beginning, counted in tokens, the prompts included."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Generated:
    """What was generated, and at what depth."""

    tokens: Tensor
    """The new tokens, (B, N) int64; `PAD` after the one that a row stopped with. N is the longest of `lengths`."""
    exits: Tensor
    """The loop that each was read from, 1..K, (B, N) int64; 0 at padding."""
    lengths: Tensor
    """New tokens of each row, the one that it stopped with included, (B,) int64."""
    executed: int
    """Loops that were run, counted in tokens, the prompts included: more than the exits say where skipped loops had to
    be made up for."""


class Options(TypedDict, total=False):
    """The options of `generate`, those of `stream`."""

    loops: int | None
    temperature: float
    top_k: int | None
    top_p: float | None
    generator: torch.Generator | None
    early_exit: EarlyExit | None
    stop: int | Collection[int]


def generate(
    model: LoopedTransformer | Looped, prompts: Prompts, max_new_tokens: int, **options: Unpack[Options]
) -> Generated:
    """Continue prompts, token by token, with a key and a value for every (loop, layer) kept.

    Args:
        model: a LoopedTransformer, or any `Looped` with `decode`; run in evaluation mode and left as it was.
        prompts: (B, T) int64, or B sequences of token ids of any lengths >= 1 (shorter ones are padded on the left).
        max_new_tokens: the most that a row is continued by.
        loops: K; the trained loops when omitted.
        temperature, top_k, top_p: see `Sampling`; a temperature of 0 takes the likeliest token.
        generator: of the samples, on the model's device; None: torch's global one.
        early_exit: when a token leaves before loop K; for a model whose `decode` is a `models.StepwiseDecode`, as that
            of a LoopedTransformer. Prompts run at full depth but for their last token.
        stop: token ids with which a row ends. It leaves the batch and costs nothing from then on, and neither what the
            other rows show nor what they draw depends on it.

    Raises:
        InputError: a model that cannot decode so, empty prompts, tokens outside the vocabulary, bad settings.
    """
    steps = list(stream(model, prompts, max_new_tokens, **options))
    first = steps[0].tokens
    tokens = first.new_full((len(first), len(steps)), PAD)
    exits = torch.zeros_like(tokens)
    for place, step in enumerate(steps):
        tokens[step.rows, place], exits[step.rows, place] = step.tokens, step.exits
    return Generated(tokens=tokens, exits=exits, lengths=(exits > 0).sum(1), executed=steps[-1].executed)


def stream(
    model: LoopedTransformer | Looped,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    loops: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    early_exit: EarlyExit | None = None,
    stop: int | Collection[int] = (),
) -> Iterator[NewTokens]:
    """As `generate`, each step as soon as it is there. All is checked at once, before the first token is asked for; the
    model may be used for other things between two steps."""
    check_count("max_new_tokens", max_new_tokens)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    view = decodable(model)
    device = device_of(view)
    _check_generator(generator, device)
    stops = torch.tensor(_stops(stop, view.vocab_size), dtype=torch.int64, device=device)
    tokens, mask = padded(prompts, view.vocab_size, device)
    decoder = Decoder(view, len(tokens), loops, early_exit)
    return _steps(decoder, tokens, mask, max_new_tokens, sampling, generator, stops)


def _steps(
    decoder: Decoder,
    tokens: Tensor,
    mask: Tensor,
    most: int,
    sampling: Sampling,
    generator: torch.Generator | None,
    stops: Tensor,
) -> Iterator[NewTokens]:
    B, rows, last = len(tokens), torch.arange(len(tokens), device=tokens.device), tokens[:, -1]
    if tokens.shape[1] > 1:
        with untouched(decoder.model):
            decoder.held.prefill(tokens[:, :-1], mask[:, :-1])
    for _ in range(most):
        with untouched(decoder.model):
            step = decoder.step(last)
        # A number for every row there was, so that those that are left draw what they would have drawn.
        uniform = torch.rand(B, generator=generator, device=rows.device)[rows] if sampling.temperature else None
        last = sampling.choose(step.logits, uniform)
        yield NewTokens(rows=rows, tokens=last, exits=step.exits, executed=decoder.held.executed)
        stopped = torch.isin(last, stops)
        if stopped.all():
            return
        if stopped.any():
            decoder.keep(~stopped)
            rows, last = rows[~stopped], last[~stopped]


def _stops(stop: object, vocab_size: int | None) -> list[int]:
    tokens: list[Any] = list(stop) if isinstance(stop, Collection) and not isinstance(stop, str | bytes) else [stop]
    most, expected = token_range(vocab_size)
    for token in tokens:
        check_count("stop", token, f"token ids in {expected}", least=0, most=most)
    return tokens


def _check_generator(generator: object, device: torch.device) -> None:
    if generator is None:
        return
    expected = f"a torch.Generator on {device.type}, where the model is, or None"
    check_kind("generator", generator, torch.Generator, expected)
    if isinstance(generator, torch.Generator) and generator.device.type != device.type:
        raise InputError(f"generator is on {generator.device}; expected {expected}")
