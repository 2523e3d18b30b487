"""Audits of untrained reference models: whether scale is hidden and carried before training."""

from __future__ import annotations

from functools import cache

import torch

import loopverify as lv
from loopverify.models import LoopedTransformer, TransformerConfig

__all__ = ["audited"]


@cache
def audited(loss: str = "per_loop", **fields: object) -> lv.Audit:
    """The audit of a `LoopedTransformer` with these fields of `TransformerConfig`; weights and tokens are from seed 0.

    Args:
        loss: a name as in `loopverify.objectives.named`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = LoopedTransformer(TransformerConfig(vocab_size=65, **fields))  # type: ignore[arg-type]
        tokens = torch.randint(65, (4, 33))
    objective = lv.objectives.named(loss)
    return lv.audit(module.looped(), tokens[:, :-1], tokens[:, 1:], objective=objective)
