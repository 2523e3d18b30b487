"""The records of a comparison of two models. `Comparison` is what `loopverify.compare` returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeGuard

__all__ = ["Agreement", "Comparison", "Gap", "LoopGaps", "Parting", "Quantity", "Side"]

Agreement = Literal["identical", "rounding", "drift", "parts"]
Quantity = Literal["state", "scale", "direction", "logits"]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How far one quantity of b is from that of a, at the token where it is farthest."""

    error: float
    """Relative; inf where one of the two is not finite."""
    ulps: float
    """`error` in units of the coarser dtype's eps."""
    token: tuple[int, int]
    """(row of the batch, position)."""


@dataclass(frozen=True, kw_only=True)
class LoopGaps:
    """The gaps of one loop."""

    loop: int
    """k; 0 is the embedding."""
    state: Gap | None
    """rms(H_k(b) − H_k(a)) / rms(H_k(a)); None where no states are compared."""
    scale: Gap | None
    """|s_b − s_a| / s_a."""
    direction: Gap | None
    """rms(u_b − u_a)."""
    logits: Gap | None
    """max|z_b − z_a| / max|z_a|; None at loop 0."""
    argmax_flips: int | None
    """Tokens whose most likely next token differs. Within the tolerance of logits only near ties can flip."""
    cross_entropy: float | None
    """CE_b − CE_a in nats a token; None without targets. At most 2·max|z_b − z_a|."""
    tolerance: float
    """What each of these gaps may be."""

    def first_beyond(self) -> tuple[Quantity, Gap] | None:
        """The first quantity that is off by more than the tolerance: the state, or else the logits.

        A state that only grew or only turned is named by what changed.
        """
        if self._beyond(self.state):
            parts: tuple[tuple[Quantity, Gap | None], ...] = (("scale", self.scale), ("direction", self.direction))
            changed = [(name, gap) for name, gap in parts if gap is not None and self._beyond(gap)]
            return changed[0] if len(changed) == 1 else ("state", self.state)
        return ("logits", self.logits) if self._beyond(self.logits) else None

    def _beyond(self, gap: Gap | None) -> TypeGuard[Gap]:
        return gap is not None and not gap.error <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Parting:
    """Where two models part."""

    loop: int
    quantity: Quantity
    gap: Gap
    tolerance: float
    of: Literal["step", "run"]
    """step: b's step (or readout) on a's own state; run: each model on its own states."""
    sublayer: str | None = None
    """The first residual branch that differs within the step, where both models can be taken apart."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two models."""

    model: str
    path: str
    """How its logits were computed: 'readout', or the name of another path."""
    loops: int
    dtype: str
    """Of the states (of the logits, for another path)."""
    device: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two models, loop by loop."""

    a: Side
    b: Side
    batch: int
    tokens: int
    """T, of each sequence."""
    dtype: str
    """The coarser of the two computations, whose ulps are counted."""
    eps: float
    """One ulp of a number of size 1."""
    tolerance: float
    """Relative error that one loop may make; after loop k, (k + 1) times as much."""
    seed: int
    """Of random numbers that the models draw in evaluation mode."""
    versions: Mapping[str, str]
    run: tuple[LoopGaps, ...]
    """Each model on its own states, loops 0..K."""
    steps: tuple[LoopGaps, ...]
    """b's embedding, then b's step and readout on a's states, loops 0..K; empty where b is another path."""
    growth: float | None
    """Factor a loop by which the relative error of the state grows (fit over the run); None without any error."""
    agreement: Agreement
    first: Parting | None
    """Where they part, or drift beyond the tolerance."""

    @property
    def agrees(self) -> bool:
        """Equal, or equal to rounding, at every loop."""
        return self.agreement in ("identical", "rounding")

    @property
    def steps_agree(self) -> bool:
        """No single step is at fault, whatever has accumulated."""
        return self.agreement != "parts"

    def to_dict(self) -> dict[str, object]:
        """Everything as dicts, lists, strings, finite numbers, booleans and None; other numbers as 'inf' or 'nan'."""
        conclusions = {"agreement": self.agreement, "agrees": self.agrees, "steps_agree": self.steps_agree}
        plain = _plain({**conclusions, **asdict(self)})
        assert isinstance(plain, dict)
        return plain

    def __str__(self) -> str:
        from loopverify.probes.comparison_table import render

        return render(self)


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value
