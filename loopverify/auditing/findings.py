"""What an audit measures, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from loopverify.auditing.carry import LoopCarry
from loopverify.auditing.depth import DepthUse, OvershootPoint
from loopverify.auditing.exit_sweep import Exit, Visibility
from loopverify.auditing.gradients import RadialGradient
from loopverify.auditing.growth import GrowthLaw
from loopverify.auditing.ledger import Update
from loopverify.auditing.norms import TokenNorms
from loopverify.auditing.visibility import Signal
from loopverify.theory.recurrence import CarryKind

__all__ = ["Facts", "Findings", "LoopRecord", "StateVariable", "Verdict"]

Verdict = Literal["blind_spot", "controlled", "damped", "removed"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was audited, and with which versions."""

    model: str
    objective: str
    loops: int
    """K."""
    trained_loops: int
    """r0."""
    batch: int
    tokens: int
    """T, the length of each sequence."""
    channels: int
    """D."""
    dtype: str
    """dtype of the states."""
    working_dtype: str
    """The coarsest dtype among states, parameters and autocast, which sets the rounding floor."""
    device: str
    seed: int
    """Seed of the random numbers that the model draws in evaluation mode."""
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class StateVariable:
    """A number that each token's state carries from loop to loop: its scale, or its mean channel."""

    name: str
    visibility: Visibility
    """Visibility to the objective as a whole."""
    seen_by: tuple[str, ...]
    """The terms of the objective that see it."""
    carry: CarryKind
    factor: float
    """c, the carry of consecutive loops as one factor per loop; see `loopverify.auditing.carry.LastingCarry`."""

    @property
    def blind(self) -> bool:
        """Whether the loop carries it and no term would notice if it grew."""
        return self.visibility == "hidden" and self.carry in ("carried", "amplified")


@dataclass(frozen=True, kw_only=True)
class LoopRecord:
    """One loop: the state H_k that it produced, how, and which gradients of the loss reach H_k."""

    loop: int
    norms: TokenNorms
    """||H_k||_2, tokenwise."""
    rms: TokenNorms
    """rms(H_k) = ||H_k||_2 / √D, tokenwise."""
    direct: RadialGradient
    """Gradient from the terms that read H_k."""
    indirect: RadialGradient
    """Gradient through the later loops."""
    update: Update
    """The ledger entry of the step from H_{k-1}."""
    carry: LoopCarry | None
    """Carry of the scale by this loop alone, at H_{k-1}; None where it cannot be measured, as at a zero H_{k-1}."""
    sublayers: Mapping[str, float] | None
    """Growth of the scale (mean over tokens, rms) by sublayer; None where the model declares no branches."""

    @property
    def a_rad(self) -> float:
        """⟨u, b⟩/d, rms units; see `Update`."""
        return self.update.a_rad

    @property
    def b_perp(self) -> float:
        """rms of the turning part of the update."""
        return self.update.b_perp


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a looped model carries from loop to loop, and what its objective sees of it."""

    facts: Facts
    scale: StateVariable
    mean: StateVariable
    """The mean channel, a second blind direction behind LayerNorm readouts."""
    per_loop: tuple[LoopRecord, ...]
    """Loops 1..K."""
    exits: tuple[Exit, ...]
    """Exits 1..K, supervised or not."""
    signals: tuple[Signal, ...]
    """What each term of the objective sees at each loop whose state it reads."""
    growth: GrowthLaw | None
    """Growth law of the mean rms over at least four times the trained loops; None, with a note, if there is no fit."""
    depth: DepthUse
    """Depth use of the exits 1..K."""
    overshoot: tuple[OvershootPoint, ...]
    """CE(K) of runs up to twice the trained loops."""
    notes: tuple[str, ...]
    """What could not be measured and why, and which findings are uncertain."""

    @property
    def blind(self) -> list[str]:
        """Names of the state variables that are hidden and carried."""
        return [variable.name for variable in (self.scale, self.mean) if variable.blind]

    @property
    def verdict(self) -> Verdict:
        """The result in one word.

        blind_spot: a variable is carried (or amplified) and hidden from every term. removed, damped: the loop does not
        keep scale. controlled: scale is carried, and a term sees it.
        """
        if self.blind:
            return "blind_spot"
        if self.scale.carry == "removed":
            return "removed"
        return "damped" if self.scale.carry == "damped" else "controlled"
