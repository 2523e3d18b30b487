"""Cached generation: greedy or sampled, for prompts of different lengths, with early exits and stop tokens.

Shapes: B prompts, of which R have not stopped, N steps, V vocabulary.
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
"""Fills a row after its last token; not a token id."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NewTokens:
    """One step: a new token for each row that has not stopped."""

    rows: Tensor
    """Indices of their prompts, (R,) int64, increasing."""
    tokens: Tensor
    """The new tokens, (R,) int64."""
    exits: Tensor
    """The exit of each token, 1..K, (R,) int64."""
    executed: int
    """Loops run since the beginning, summed over tokens, including those of the prompts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Generated:
    """The generated tokens and their depths."""

    tokens: Tensor
    """The new tokens, (B, N) int64, with `PAD` after a stop token. N is the largest of `lengths`."""
    exits: Tensor
    """The exit of each token, 1..K, (B, N) int64; 0 at padding."""
    lengths: Tensor
    """Number of new tokens of each row, including the stop token, (B,) int64."""
    executed: int
    """Loops run, summed over tokens, including those of the prompts. Exceeds the sum of `exits` where skipped loops had
    to be run later."""


class Options(TypedDict, total=False):
    """The options that `generate` passes on to `stream`."""

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
    """Continue prompts token by token, with cached keys and values of every (loop, layer).

    Args:
        model: a LoopedTransformer, or any `Looped` with `decode`; run in evaluation mode and left unchanged.
        prompts: (B, T) int64, or B sequences of token ids of any lengths >= 1 (padded on the left).
        max_new_tokens: the largest number of new tokens per row.
        loops: K; the trained loops when omitted.
        temperature, top_k, top_p: see `Sampling`; a temperature of 0 takes the most likely token.
        generator: generator of the samples, on the model's device; torch's global one when omitted.
        early_exit: the rule by which tokens leave before loop K; requires a model whose `decode` is a
            `models.StepwiseDecode`, such as a LoopedTransformer. All tokens of a prompt but the last run at full depth.
        stop: token ids that end a row. The row leaves the batch and costs nothing from then on; the logits and random
            draws of other rows do not depend on it.

    Raises:
        InputError: the model cannot decode in this way, a prompt is empty, a token is outside the vocabulary, or an
            option is invalid.
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
    """As `generate`, but yields each step as soon as it is computed.

    Arguments are checked immediately, before the first token is requested. The model may be used otherwise between two
    steps.
    """
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
        # One number for every initial row, so that the draws of a row do not depend on which other rows have stopped.
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
