"""A planted fault: a class with `looped()`, the check that must trip on it, and the message it must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import loopverify as lv


@dataclass(frozen=True, kw_only=True)
class Saboteur:
    """A model with one fault."""

    name: str
    check: str
    """The id of the check that must trip on it."""
    words: str
    """A regular expression that the message must match."""
    plant: Callable[[], Any]
    alone: bool = False
    """Whether no other check may fail or crash on it, since its message would mislead."""

    def build(self, seed: int) -> lv.Looped:
        """The model, with weights from `seed`."""
        torch.manual_seed(seed)
        model: lv.Looped = self.plant().looped(self.name)
        return model


def trips(check: str, words: str, *, alone: bool = False) -> Callable[[type], type]:
    """Mark a class as the saboteur of a check."""

    def mark(plant: type) -> type:
        plant.saboteur = Saboteur(name=plant.__name__, check=check, words=words, plant=plant, alone=alone)
        return plant

    return mark
