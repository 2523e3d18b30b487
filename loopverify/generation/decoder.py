"""One decoder for every model that can decode: loop by loop through its own step, or by its own `decode`.

Shapes: B rows, t new tokens, V vocabulary, K loops.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.arguments import check_count, check_kind
from loopverify.errors import InputError
from loopverify.generation.early_exit import EarlyExit, step_with_exits
from loopverify.generation.own_decode import OwnCaches
from loopverify.looped import Looped
from loopverify.models import LoopedTransformer
from loopverify.models.decoding import Sequences, StepwiseDecode

__all__ = ["Decoder", "Step", "decodable"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """The result of decoding one new token per row."""

    logits: Tensor
    """Logits of the exit that each row took, (B, V)."""
    exits: Tensor
    """The exit that each row took, 1..K, (B,) int64."""


class Decoder:
    """A batch of sequences that a model continues.

    Args:
        model: a LoopedTransformer, or any `Looped` with `decode`. Its training mode is left to the caller.
        rows: B.
        loops: K; the trained loops when omitted.
        early_exit: the rule for early exits; None runs every token to K.

    Attributes:
        held: the stored sequences and the number of loops run, summed over tokens (`held.executed`).

    Raises:
        InputError: the model cannot decode, rows or loops are below 1, `early_exit` is not an EarlyExit, or it is given
            for a model whose `decode` does not step it loop by loop.
    """

    def __init__(
        self,
        model: LoopedTransformer | Looped,
        rows: int,
        loops: int | None = None,
        early_exit: EarlyExit | None = None,
    ) -> None:
        self.model = decodable(model)
        self.loops = self.model.trained_loops if loops is None else loops
        check_count("rows", rows)
        check_count("loops", self.loops)
        if early_exit is not None:
            check_kind("early_exit", early_exit, EarlyExit, "an EarlyExit(threshold=...), or None for full depth")
        decode = self.model.decode
        self.held: Sequences | OwnCaches
        if isinstance(decode, StepwiseDecode):
            self.held = decode.begin(rows, self.loops)
        elif early_exit is None:
            self.held = OwnCaches(self.model, rows, self.loops)
        else:
            raise InputError(
                f"early_exit with {self.model.name!r}, whose decode runs all loops in one call; expected a decode that "
                "steps the model, loopverify.models.StepwiseDecode(), as a LoopedTransformer declares it"
            )
        self._early_exit = early_exit

    def extend(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Continue every sequence by tokens (B, t) at full depth; returns the logits of the last exit, (B, t, V).

        Args:
            mask: (B, t) bool, True at real tokens, as of `embed_masked`; all of them when omitted.
        """
        return self.held.extend(tokens, mask)

    def step(self, tokens: Tensor) -> Step:
        """Continue every sequence by one token (B,), which may leave early."""
        if self._early_exit is not None and isinstance(self.held, Sequences):
            logits, exits = step_with_exits(self.model, self.held, self._early_exit, tokens)
            return Step(logits=logits, exits=exits)
        return Step(logits=self.held.extend(tokens[:, None])[:, -1], exits=torch.full_like(tokens, self.loops))

    def keep(self, rows: Tensor) -> None:
        """Continue with these rows only, (R,) int64 or (B,) bool; the others cost nothing from now on."""
        self.held.keep(rows)


def decodable(model: LoopedTransformer | Looped) -> Looped:
    """The `Looped` view of a model that can decode.

    Raises:
        InputError: `model` is something else, or its `decode` was declared for another embed, step or readout.
    """
    view = model.looped() if isinstance(model, LoopedTransformer) else model
    if not isinstance(view, Looped) or view.decode is None:
        name = view.name if isinstance(view, Looped) else type(view).__name__
        raise InputError(f"generation got {name!r}; expected a LoopedTransformer, or a Looped that declares decode")
    if replaced := view.replaced():
        raise InputError(
            f"{view.name!r} has another {', '.join(replaced)} than its decode was declared with; expected a decode of "
            "the same model, as in replace(model, step=..., decode=...)"
        )
    return view
