"""The effect of early exits on cached decoding: quality, agreement with full depth, and loops run.

Held-out text is decoded token by token with teacher forcing, so that all rules are compared on the same contexts. Exits
per token are calibrated like exits per sequence: `halting.exit_table(..., by="token")` scores the exits of the full
forward, and `halting.calibrate` keeps a perplexity budget. This module measures whether the budget also holds with a
cache, where later tokens attend to keys that were never computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from loopverify.arguments import IGNORE, check_count, check_kind
from loopverify.generation.decoder import Decoder, decodable
from loopverify.generation.early_exit import MISSING, EarlyExit
from loopverify.halting.confidence import named
from loopverify.looped import Looped, unroll
from loopverify.measures.held_out import Batches, batch_pairs, perplexity
from loopverify.measures.per_token import token_losses
from loopverify.models import LoopedTransformer
from loopverify.readonly import untouched

__all__ = ["ExitEffect", "exit_effect"]


@dataclass(frozen=True, kw_only=True)
class ExitEffect:
    """One rule for missing keys, at one threshold."""

    missing: str
    score: str
    threshold: float
    loops: int
    """K."""
    selected_loops: float
    """Mean over tokens of the exit taken."""
    executed_loops: float
    """Mean over tokens of the loops run, including those that were run later."""
    loss: float
    """Cross-entropy of the exits taken, nats per token."""
    full_loss: float
    """Cross-entropy of the full forward at depth K on the same tokens, nats per token."""
    agreement: float
    """Share of tokens with the same most likely next token as at full depth."""
    tokens: int
    """Number of tokens measured."""

    @property
    def perplexity_ratio(self) -> float:
        """Dynamic over full-depth perplexity, which a budget bounds."""
        return perplexity(self.loss - self.full_loss)


def exit_effect(
    model: LoopedTransformer | Looped,
    batches: Batches,
    early_exit: EarlyExit,
    loops: int | None = None,
    *,
    rules: tuple[str, ...] = MISSING,
    prefix: int = 1,
) -> tuple[ExitEffect, ...]:
    """Decode held-out batches with early exits, once for each rule for missing keys.

    Args:
        batches: pairs (tokens, targets), each (B, T) int64, unpadded; targets of -100 are ignored.
        early_exit: threshold and score; its own rule is replaced by each of `rules`.
        loops: K; the trained loops when omitted.
        prefix: number of first tokens of each sequence that run at full depth and are not measured.

    Raises:
        InputError: the model cannot decode, batches are invalid, a rule is unknown, or the prefix leaves no token to
            measure.
    """
    view = decodable(model)
    pairs = batch_pairs(view, batches)
    shortest = min(tokens.shape[1] for tokens, _ in pairs)
    expected = f"0..{shortest - 1}, so that sequences of {shortest} go on after it"
    check_count("prefix", prefix, expected, least=0, most=shortest - 1)
    check_kind("early_exit", early_exit, EarlyExit, "an EarlyExit(threshold=...)")
    with untouched(view), torch.no_grad():
        full = [_full(view, tokens, targets, loops, prefix) for tokens, targets in pairs]
        return tuple(
            _effect(view, pairs, full, replace(early_exit, missing=rule), loops, prefix)  # type: ignore[arg-type]
            for rule in rules
        )


def _full(view: Looped, tokens: Tensor, targets: Tensor, loops: int | None, prefix: int) -> tuple[Tensor, Tensor]:
    """Losses and most likely tokens of the full forward after the prefix, each (B, T - prefix)."""
    trace = unroll(view, tokens, loops)
    logits = trace.logits(trace.loops)[:, prefix:]
    return token_losses(logits, targets[:, prefix:]), logits.argmax(-1)


def _effect(
    view: Looped,
    pairs: list[tuple[Tensor, Tensor]],
    full: list[tuple[Tensor, Tensor]],
    rule: EarlyExit,
    loops: int | None,
    prefix: int,
) -> ExitEffect:
    exits, losses, full_losses, alike, executed, fed = [], [], [], [], 0, 0
    for (tokens, targets), (full_loss, full_best) in zip(pairs, full, strict=True):
        decoder = Decoder(view, len(tokens), loops, rule)
        if prefix:
            decoder.held.prefill(tokens[:, :prefix])
        steps = [decoder.step(column) for column in tokens[:, prefix:].unbind(1)]
        counted = targets[:, prefix:] != IGNORE
        logits = torch.stack([step.logits for step in steps], 1)
        exits.append(torch.stack([step.exits for step in steps], 1)[counted])
        losses.append(token_losses(logits, targets[:, prefix:])[counted])
        full_losses.append(full_loss[counted])
        alike.append((logits.argmax(-1) == full_best)[counted])
        executed += decoder.held.executed - decoder.loops * len(tokens) * prefix
        fed += counted.numel()
    return ExitEffect(
        missing=rule.missing,
        score=named(rule.score).name,
        threshold=rule.threshold,
        loops=decoder.loops,
        selected_loops=_mean(exits),
        executed_loops=executed / fed,
        loss=_mean(losses),
        full_loss=_mean(full_losses),
        agreement=_mean(alike),
        tokens=sum(map(len, losses)),
    )


def _mean(parts: list[Tensor]) -> float:
    return float(torch.cat(parts).double().mean())
