"""Subject: a stored run, loaded to be measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from loopverify.errors import LoopverifyError
from loopverify.looped import Looped
from loopverify.models import LoopedTransformer
from train.data import Examples
from train.machine.hardware import pinned
from train.specification import RunSpec
from train.store import StoredRun
from train.store.files import MODEL

__all__ = ["Pairs", "Subject", "load"]

Pairs = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A trained run and its held-out examples, measured in float32, in which small effects can be told."""

    spec: RunSpec
    module: LoopedTransformer
    examples: Examples

    @cached_property
    def model(self) -> Looped:
        """The trained model."""
        return self.module.looped(self.spec.condition)

    def batches(self, count: int) -> Pairs:
        """`count` held-out examples, as (tokens, targets)."""
        device = self.spec.device
        return [(tokens.to(device), targets.to(device)) for tokens, targets in self.examples.held_out(count)]

    def metrics(self, measure: Callable[[Subject], dict[str, float]]) -> dict[str, float]:
        """What a measurement gives, under the settings that the run was trained with."""
        with pinned(self.spec.preset.threads):
            return measure(self)


def load(spec: RunSpec, stored: StoredRun) -> LoopedTransformer:
    """The trained model of a stored run, on the device of its spec."""
    weights = stored.tensors(MODEL)
    with torch.random.fork_rng(devices=[]):
        module = spec.model(len(weights["embedding.weight"]))
    missing, unexpected = module.load_state_dict(weights, strict=False)
    # A tensor that two modules share is stored under one of its names.
    state = module.state_dict()
    filled = {state[name].data_ptr() for name in weights.keys() - set(unexpected)}
    absent = [name for name in missing if state[name].data_ptr() not in filled]
    if absent or unexpected:
        raise LoopverifyError(
            f"the weights of {stored.path} are not those of {spec.label}: missing {absent}, unexpected {unexpected}"
        )
    return module.to(spec.device)
