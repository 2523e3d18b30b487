"""What the looped models of transformers (>= 5.24) have in common: masks, positions and the module's own forward."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loopverify.errors import MissingDependencyError

__all__ = ["OwnForward", "attention_masks", "initialized", "positions_of"]

LoopSetting = Callable[[int], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class OwnForward:
    """The module's own forward for a chosen number of loops: the last exit without this package's driver."""

    module: nn.Module
    set_loops: LoopSetting
    """set_loops(loops): a context manager inside which the module runs that many loops."""

    def plain(self, tokens: Tensor, loops: int) -> Tensor:
        """tokens (B, T) -> logits (B, T, V), without cache or labels."""
        return self._run(loops, input_ids=tokens, use_cache=False)

    def with_labels(self, tokens: Tensor, loops: int) -> Tensor:
        """As `plain`, with the tokens themselves as labels: the logits of the training path."""
        return self._run(loops, input_ids=tokens, labels=tokens, use_cache=False)

    def prefill(self, tokens: Tensor, loops: int) -> Tensor:
        """As `plain`, filling a new cache on the way."""
        return self.decode(tokens, None, loops)[0]

    def decode(self, tokens: Tensor, cache: Any, loops: int) -> tuple[Tensor, Any]:
        """tokens (B, t) after those that `cache` holds -> logits (B, t, V) and the cache with these tokens added."""
        with self.set_loops(loops):
            output = self.module(input_ids=tokens, cache=cache, use_cache=True)
        return output.logits, output.cache

    def paths(self) -> dict[str, Callable[[Tensor, int], Tensor]]:
        """Functions that compute the logits of the last exit, by name."""
        return {"forward": self.plain, "forward_with_labels": self.with_labels, "cached_prefill": self.prefill}

    def _run(self, loops: int, **inputs: object) -> Tensor:
        with self.set_loops(loops):
            logits: Tensor = self.module(**inputs).logits
        return logits


def positions_of(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Positions (1, T), or (B, T) under a mask (B, T): then they count from the first real token of each row."""
    if mask is None:
        return torch.arange(tokens.shape[1], device=tokens.device)[None]
    return (mask.long().cumsum(1) - 1).clamp_min(0)


def attention_masks(config: Any, embedded: Tensor, mask: Tensor | None, positions: Tensor) -> dict[str, Any]:
    """The masks that transformers itself would build, by the type of layer that uses them.

    `embedded` is (B, T, D); `mask` is (B, T) bool, True at real tokens; `positions` come from `positions_of`. The
    type of a mask depends on the module's attention implementation: None, a tensor, or a block mask.
    """
    try:
        masking = importlib.import_module("transformers.masking_utils")
    except ImportError as error:
        raise MissingDependencyError(
            "this module has the structure of a looped model of transformers, which is not installed; "
            "install it with: pip install 'loopverify[hf]'"
        ) from error
    inputs = {
        "config": config,
        "inputs_embeds": embedded,
        "attention_mask": None if mask is None else mask.long(),
        "cache": None,
        "position_ids": positions,
    }
    masks = {
        "full_attention": masking.create_causal_mask(**inputs),
        "linear_attention": masking.create_recurrent_attention_mask(**inputs),
    }
    if getattr(config, "sliding_window", None) is not None:
        masks["sliding_attention"] = masking.create_sliding_window_causal_mask(**inputs)
    return masks


def initialized(layers: Any) -> int:
    """How many of these cache layers hold keys and values."""
    return sum(bool(layer.is_initialized) for layer in layers)
