"""Statistics of each token at an exit, computed without holding all logits: a head product then costs time, not memory.

A linear head is multiplied block by block of the vocabulary. Of each block only its two largest logits, its
log-sum-exp, its entropy and the logit of the target are kept, which determine those of the whole vocabulary (the
entropy by the chain rule, H = Σ_b w_b·H_b + H(w), with w_b the probability of block b). Any other readout is called on
a few tokens at a time.

Shapes: B batch, T tokens, D channels, V vocabulary. Half precisions are measured in float32; units are nats or logits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from loopverify.arguments import IGNORE, check_vocabulary
from loopverify.errors import InputError
from loopverify.looped import Looped
from loopverify.measures.per_token import entropies
from loopverify.models import LoopedTransformer
from loopverify.theory.polar import at_least_float32

__all__ = [
    "LOSS",
    "LinearHead",
    "TokenStatistics",
    "exit_statistics",
    "head_statistics",
    "linear_head",
    "logit_statistics",
]

LOSS = frozenset({"mass"})
"""The statistics that the loss of a token needs."""
BLOCK = 1024
"""Rows of a linear head multiplied at a time: 2 MB of logits for 512 tokens in float32."""
LOGITS = 1 << 20
"""Logits held at a time if the readout is not a linear head."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearHead:
    """A readout whose logits are weight @ shown."""

    shown: Callable[[Tensor, int, int], Tensor]
    """shown(state (..., D), loop, loops) -> (..., D): the input of the head at this exit."""
    weight: Tensor
    """(V, D)."""


def linear_head(model: Looped) -> LinearHead | None:
    """The linear head of the reference transformer; None for any other model or readout."""
    module = model.module
    if not isinstance(module, LoopedTransformer) or model.readout != module.readout:
        return None
    if type(module).readout is not LoopedTransformer.readout:
        return None
    return LinearHead(shown=module.shown, weight=module.head.weight)


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenStatistics:
    """One exit, token by token: each field is (B, T), or None if it was not requested."""

    token: Tensor | None
    """int64, the most likely token; one of them in a tie."""
    first: Tensor | None
    """Its logit."""
    second: Tensor | None
    """The second largest logit, equal to the first in a tie."""
    logsumexp: Tensor | None
    entropy: Tensor | None
    target: Tensor | None
    """The logit of the target, 0 where it is ignored."""
    counted: Tensor | None
    """bool, whether the target counts."""

    @property
    def margin(self) -> Tensor:
        """Largest minus second largest logit, (B, T)."""
        assert self.first is not None
        assert self.second is not None
        return self.first - self.second

    @property
    def top_probability(self) -> Tensor:
        """The largest probability, (B, T)."""
        assert self.first is not None
        assert self.logsumexp is not None
        return (self.first - self.logsumexp).exp()

    @property
    def negative_entropy(self) -> Tensor:
        """Σ p log p, nats, (B, T)."""
        assert self.entropy is not None
        return -self.entropy

    @property
    def loss(self) -> Tensor:
        """Cross-entropy, nats, (B, T); 0 where the target is ignored."""
        assert self.logsumexp is not None
        assert self.target is not None
        assert self.counted is not None
        return torch.where(self.counted, self.logsumexp - self.target, 0.0)

    def rows(self, chosen: Tensor) -> TokenStatistics:
        """The statistics of the chosen sequences, (B,) bool or indices."""
        return self._map(lambda values: values[chosen])

    def _map(self, change: Callable[[Tensor], Tensor]) -> TokenStatistics:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return TokenStatistics(**{name: None if value is None else change(value) for name, value in values.items()})


def exit_statistics(
    model: Looped,
    state: Tensor,
    context: Any,
    loop: int,
    loops: int,
    *,
    targets: Tensor | None = None,
    wants: Collection[str] = LOSS,
) -> TokenStatistics:
    """Read exit `loop` of a run of `loops` at every token of `state` (B, T, D).

    Args:
        targets: (B, T) int64, -100 where a token is left out; without targets there is no loss.
        wants: the statistics to compute, each of which costs a pass over the logits: "top" (token, first, second),
            "mass" (logsumexp) and "entropy" (which includes "mass").

    Raises:
        InputError: a target is outside the vocabulary, or "top" is wanted of a single logit.
    """
    head = linear_head(model)
    if head is not None:
        return head_statistics(head.shown(state, loop, loops), head.weight, targets=targets, wants=wants)
    parts, at, many = [], 0, 1  # the first call, of one token, shows how many logits a token has
    while at < state.shape[1]:
        logits = model.readout(state[:, at : at + many], context, loop, loops)
        aims = None if targets is None else targets[:, at : at + many]
        parts.append(logit_statistics(logits, targets=aims, wants=wants))
        at, many = at + many, max(1, LOGITS // logits[:, 0].numel())
    return _over_tokens(parts)


def head_statistics(
    shown: Tensor, weight: Tensor, *, targets: Tensor | None = None, wants: Collection[str] = LOSS
) -> TokenStatistics:
    """As `exit_statistics`, for the logits shown (B, T, D) @ weight (V, D)^T."""
    _check(targets, len(weight), wants)
    parts, start = [], 0
    for rows in torch.split(weight, BLOCK):
        parts.append(_of_block(F.linear(shown, rows), start, targets, wants))
        start += len(rows)
    return _over_vocabulary(parts)


def logit_statistics(
    logits: Tensor, *, targets: Tensor | None = None, wants: Collection[str] = LOSS
) -> TokenStatistics:
    """As `exit_statistics`, for given logits (B, T, V)."""
    _check(targets, logits.shape[-1], wants)
    return _of_block(logits, 0, targets, wants)


def _check(targets: Tensor | None, V: int, wants: Collection[str]) -> None:
    if targets is not None:
        check_vocabulary(targets, V)
    if "top" in wants and V < 2:
        raise InputError(f"a margin of {V} logits; expected at least two")


def _of_block(block: Tensor, start: int, targets: Tensor | None, wants: Collection[str]) -> TokenStatistics:
    """Statistics of the logits (B, T, v) of tokens start, start + 1, ..., as if the vocabulary had no others."""
    block = at_least_float32(block)
    token = first = second = target = counted = None
    if "top" in wants:
        values, places = block.topk(min(2, block.shape[-1]))
        first, token = values[..., 0], places[..., 0] + start
        second = values[..., 1] if values.shape[-1] > 1 else torch.full_like(first, -torch.inf)
    if targets is not None:
        counted = targets != IGNORE
        target = _gathered(block, targets - start)
    return TokenStatistics(
        token=token,
        first=first,
        second=second,
        logsumexp=None if LOSS.isdisjoint(wants) and "entropy" not in wants else block.logsumexp(-1),
        entropy=entropies(block) if "entropy" in wants else None,
        target=target,
        counted=counted,
    )


def _gathered(block: Tensor, places: Tensor) -> Tensor:
    """The logits of a block at `places` (B, T); 0 for places outside the block."""
    inside = (places >= 0) & (places < block.shape[-1])
    found = block.gather(-1, places.where(inside, 0)[..., None])[..., 0]
    return torch.where(inside, found, 0.0)


def _over_vocabulary(parts: Sequence[TokenStatistics]) -> TokenStatistics:
    """The statistics of the whole vocabulary from those of its blocks."""
    token = first = second = entropy = None
    firsts, seconds, tokens, masses, spreads, targets = (
        _stacked(parts, name) for name in ("first", "second", "token", "logsumexp", "entropy", "target")
    )
    if firsts is not None and seconds is not None and tokens is not None:
        first, block = firsts.max(-1)
        second = torch.cat([firsts, seconds], -1).topk(2).values[..., 1]
        token = tokens.gather(-1, block[..., None])[..., 0]
    if masses is not None and spreads is not None:
        shares = masses.softmax(-1)
        entropy = (shares * spreads).sum(-1) + torch.special.entr(shares).sum(-1)
    return TokenStatistics(
        token=token,
        first=first,
        second=second,
        logsumexp=None if masses is None else masses.logsumexp(-1),
        entropy=entropy,
        target=None if targets is None else targets.sum(-1),
        counted=parts[0].counted,
    )


def _over_tokens(parts: Sequence[TokenStatistics]) -> TokenStatistics:
    """Concatenate the statistics of successive chunks of tokens."""
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(TokenStatistics)}
    return TokenStatistics(**{name: None if of[0] is None else torch.cat(of, 1) for name, of in columns.items()})


def _stacked(parts: Sequence[TokenStatistics], name: str) -> Tensor | None:
    values = [getattr(part, name) for part in parts]
    return None if values[0] is None else torch.stack(values, -1)
