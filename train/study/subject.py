"""Subject: a stored run whose model is loaded for measurements."""

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
    """A trained run and its held-out examples; measured in float32, so that rounding does not hide small effects."""

    spec: RunSpec
    module: LoopedTransformer
    examples: Examples

    @cached_property
    def model(self) -> Looped:
        """The trained model."""
        return self.module.looped(self.spec.condition)

    def batches(self, count: int) -> Pairs:
        """Batches (tokens, targets), each (B, T) int64, of `count` held-out examples."""
        device = self.spec.device
        return [(tokens.to(device), targets.to(device)) for tokens, targets in self.examples.held_out(count)]

    def metrics(self, measure: Callable[[Subject], dict[str, float]]) -> dict[str, float]:
        """The metrics of one measurement, computed under the torch settings of training."""
        with pinned(self.spec.preset.threads):
            return measure(self)


def load(spec: RunSpec, stored: StoredRun) -> LoopedTransformer:
    """The trained model of a stored run, on the device of its spec.

    Raises:
        LoopverifyError: the stored weights are those of another model.
    """
    weights = stored.tensors(MODEL)
    with torch.random.fork_rng(devices=[]):
        module = spec.model(len(weights["embedding.weight"]))
    missing, unexpected = module.load_state_dict(weights, strict=False)
    # A tensor that two modules share (a tied head) is stored under one name only; a missing name is not absent if the
    # same memory was filled under its other name.
    state = module.state_dict()
    filled = {state[name].data_ptr() for name in weights.keys() - set(unexpected)}
    absent = [name for name in missing if state[name].data_ptr() not in filled]
    if absent or unexpected:
        raise LoopverifyError(
            f"the weights of {stored.path} are not those of {spec.label}: missing {absent}, unexpected {unexpected}"
        )
    return module.to(spec.device)
