"""Audits of freshly initialized reference models: what is hidden and carried before any training."""

from __future__ import annotations

from functools import cache

import torch

import loopverify as lv
from loopverify.models import LoopedTransformer, TransformerConfig

__all__ = ["audited"]


@cache
def audited(loss: str = "per_loop", **fields: object) -> lv.Audit:
    """Of the `LoopedTransformer` with these fields of a `TransformerConfig`; weights and tokens are those of seed 0.

    Args:
        loss: as `loopverify.objectives.named` has it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = LoopedTransformer(TransformerConfig(vocab_size=65, **fields))  # type: ignore[arg-type]
        tokens = torch.randint(65, (4, 33))
    objective = lv.objectives.named(loss)
    return lv.audit(module.looped(), tokens[:, :-1], tokens[:, 1:], objective=objective)
