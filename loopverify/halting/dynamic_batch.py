"""An engine in which sequences that halt leave their batch (Sharma & Vu 2026, appendix 17), so that the loops they skip
are really saved.

A loop is run on groups of sequences of equal depth. After it, sequences that are confident enough are decoded and
leave; the others continue. With `pool` batches in flight, the sequences that remain of all of them are merged into full
batches, so that no batch runs half empty (the paper's engine is pool = 1: the rest of a batch continues alone). At full
depth nothing is scored, and only the exit taken is decoded.

Shapes: N sequences, n of them in a group, T tokens, D channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor

from loopverify.arguments import IGNORE, check_count, check_kind, check_number, check_tokens
from loopverify.errors import InputError, unknown
from loopverify.halting.confidence import Arrival, Score, Work
from loopverify.halting.token_statistics import TokenStatistics
from loopverify.looped import Looped
from loopverify.measures.held_out import Batches, check_looped, perplexity

__all__ = ["DynamicRun", "run_batches"]


@dataclass(frozen=True, kw_only=True, eq=False)
class DynamicRun:
    """The result of one pass over some sequences."""

    exits: Tensor
    """The loop at which each sequence left, (N,) int64."""
    losses: Tensor
    """Cross-entropy of the exit taken, summed over the tokens that count, nats, (N,) float64."""
    counts: Tensor
    """Number of tokens that count, (N,) int64."""
    tokens: int
    """N·T: all tokens."""
    work: Work
    """The executed work."""

    @property
    def selected_loops(self) -> float:
        """Mean number of loops per sequence chosen by the rule."""
        return float(self.exits.double().mean())

    @property
    def executed_loops(self) -> float:
        """Loops run per token; equal to `selected_loops` if nothing runs beyond its exit and lengths are equal."""
        return self.work.steps / self.tokens

    @property
    def head_products(self) -> float:
        """Products with the whole head per token."""
        return self.work.products / self.tokens

    @property
    def loss(self) -> float:
        """Cross-entropy of the exits taken, nats per token."""
        return float(self.losses.sum()) / int(self.counts.sum())

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return perplexity(self.loss)


@dataclass(frozen=True, eq=False)
class _Group:
    """Sequences of equal length and depth."""

    numbers: Tensor
    """Indices in the whole set, (n,) int64."""
    tokens: Tensor
    targets: Tensor
    state: Tensor
    context: Any


def run_batches(
    model: Looped,
    batches: Batches,
    loops: int | None = None,
    *,
    score: Score | None = None,
    threshold: float = math.inf,
    pool: int = 1,
    decode: Literal["all", "last"] = "all",
) -> DynamicRun:
    """Run some sequences, each for as many loops as it needs, and decode the exit that it takes; without gradients.

    Args:
        batches: pairs (tokens, targets), each (B, T) int64, unpadded; see `measures.held_out.batch_pairs`.
        loops: K, the loop at which all remaining sequences leave; the trained loops when omitted.
        score: the confidence of an exit; None for fixed depth K.
        threshold: a sequence leaves after the first loop with a mean confidence above it.
        pool: consecutive batches of equal length whose sequences may share batches from loop 2 on.
        decode: which tokens are scored and decoded, 'all' or the 'last' one of a sequence (all that prediction of what
            comes next needs).

    Raises:
        InputError: `model` is not a Looped, loops or pool is below 1, the score is not a Score, the threshold is not a
            number, `decode` is unknown, tokens are outside the vocabulary, or there are no batches.
    """
    check_looped(model)
    loops = model.trained_loops if loops is None else loops
    check_count("loops", loops)
    check_count("pool", pool, "an integer >= 1, the batches in flight")
    check_number("threshold", threshold, "a mean confidence that an exit has to exceed")
    if score is not None:
        check_kind("score", score, Score, "a Score, or None for fixed depth; halting.SCORES has those with a name")
    if decode not in ("all", "last"):
        raise unknown("tokens to decode", decode, ("all", "last"))
    engine = _Engine(model, loops, score, threshold, decode == "last")
    with torch.no_grad():
        for window in _windows(batches, pool):
            engine.run(window)
    return engine.result()


class _Engine:
    def __init__(self, model: Looped, loops: int, score: Score | None, threshold: float, last: bool) -> None:
        self.model, self.loops, self.score, self.threshold, self.last = model, loops, score, threshold, last
        self.work, self.tokens, self.entered = Work(), 0, 0
        self.left: list[tuple[Tensor, int, Tensor, Tensor]] = []
        """(indices, exit, losses, counts) of sequences that left together."""

    def run(self, window: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Run all sequences of a window through their loops."""
        size = len(window[0][0])
        groups = [self._enter(tokens, targets) for tokens, targets in window]
        for loop in range(1, self.loops + 1):
            stayed = [self._advance(group, loop) for group in groups]
            groups = self._regroup([group for group in stayed if group is not None], size)

    def result(self) -> DynamicRun:
        """The result so far, in the order of the sequences."""
        if not self.left:
            raise InputError(
                "no batches; expected at least one pair (tokens, targets). Was an iterator already consumed?"
            )
        numbers = torch.cat([part[0] for part in self.left])
        order = numbers.argsort()
        exits = torch.cat([torch.full_like(part[0], part[1]) for part in self.left])
        losses, counts = (
            torch.cat(parts)[order].cpu() for parts in zip(*(part[2:] for part in self.left), strict=True)
        )
        return DynamicRun(
            exits=exits[order].cpu(),
            losses=losses.double(),
            counts=counts,
            tokens=self.tokens,
            work=replace(self.work),
        )

    def _enter(self, tokens: Tensor, targets: Tensor) -> _Group:
        check_tokens(tokens, self.model.vocab_size)
        numbers = torch.arange(self.entered, self.entered + len(tokens), device=tokens.device)
        self.entered += len(tokens)
        self.tokens += tokens.numel()
        return _Group(numbers, tokens, targets, *self.model.embed(tokens))

    def _advance(self, group: _Group, loop: int) -> _Group | None:
        """Run one loop, decode the sequences that leave, and return those that stay."""
        after = self.model.step(group.state, group.context, loop)
        self.work.steps += group.tokens.numel()
        at = self._arrival(group, after, loop)
        if loop == self.loops:
            self._leave(at, at.statistics())
            return None
        if self.score is None:
            return replace(group, state=after)
        leave, reading = self.score.leaves(at, self.threshold)
        if not leave.any():
            return replace(group, state=after)
        if leave.all():
            self._leave(at, reading or at.statistics())
            return None
        leaving = at.rows(leave)
        self._leave(leaving, leaving.statistics() if reading is None else reading.rows(leave))
        return self._group(*(part[~leave] for part in (group.numbers, group.tokens, group.targets, after)))

    def _arrival(self, group: _Group, after: Tensor, loop: int) -> Arrival:
        at = Arrival(
            model=self.model,
            tokens=group.tokens,
            before=group.state,
            after=after,
            context=group.context,
            loop=loop,
            loops=self.loops,
            targets=group.targets,
            numbers=group.numbers,
            work=self.work,
        )
        return at.at_tokens(slice(-1, None)) if self.last else at

    def _leave(self, at: Arrival, reading: TokenStatistics) -> None:
        assert at.numbers is not None
        assert at.targets is not None
        self.left.append((at.numbers, at.loop, reading.loss.double().sum(-1), (at.targets != IGNORE).sum(-1)))

    def _regroup(self, groups: list[_Group], size: int) -> list[_Group]:
        """The same sequences in the smallest number of groups of at most `size`."""
        if len(groups) < 2 or all(len(group.tokens) == size for group in groups):
            return groups
        parts = ("numbers", "tokens", "targets", "state")
        merged = (torch.split(torch.cat([getattr(group, name) for group in groups]), size) for name in parts)
        return [self._group(*rows) for rows in zip(*merged, strict=True)]

    def _group(self, numbers: Tensor, tokens: Tensor, targets: Tensor, state: Tensor) -> _Group:
        # The context may depend on the row, so it is computed again; the state that comes with it is H_0, not needed.
        return _Group(numbers, tokens, targets, state, self.model.embed(tokens)[1])


def _windows(batches: Batches, pool: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Up to `pool` consecutive batches of one length."""
    for _, alike in groupby(batches, key=lambda pair: pair[0].shape[1]):
        yield from _chunks(alike, pool)


def _chunks(pairs: Iterable[tuple[Tensor, Tensor]], size: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    chunk: list[tuple[Tensor, Tensor]] = []
    for pair in pairs:
        chunk.append(pair)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
