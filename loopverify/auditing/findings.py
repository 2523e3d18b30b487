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
    """What was audited, and by what."""

    model: str
    objective: str
    loops: int
    """K."""
    trained_loops: int
    """r0."""
    batch: int
    tokens: int
    """T, of each sequence."""
    channels: int
    """D."""
    dtype: str
    """Of the states."""
    working_dtype: str
    """The coarsest among states, parameters and autocast, which sets the rounding floor."""
    device: str
    seed: int
    """Of random numbers that the model draws in evaluation mode."""
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class StateVariable:
    """A number that each token's state carries from loop to loop: its scale, or its mean channel."""

    name: str
    visibility: Visibility
    """To the objective as a whole."""
    seen_by: tuple[str, ...]
    """The terms of the objective that see it."""
    carry: CarryKind
    factor: float
    """c, the carry of loops in a row as one factor a loop; see `loopverify.auditing.carry.LastingCarry`."""

    @property
    def blind(self) -> bool:
        """Carried on, and no term would notice if it grew."""
        return self.visibility == "hidden" and self.carry in ("carried", "amplified")


@dataclass(frozen=True, kw_only=True)
class LoopRecord:
    """One loop: the state H_k that it made, how it made it, and what the loss tells H_k."""

    loop: int
    norms: TokenNorms
    """||H_k||_2."""
    rms: TokenNorms
    """rms(H_k) = ||H_k||_2 / √D."""
    direct: RadialGradient
    """From the terms that read H_k."""
    indirect: RadialGradient
    """From what later loops make of H_k."""
    update: Update
    """The ledger entry of the step from H_{k-1}."""
    carry: LoopCarry | None
    """Of the scale, by this loop alone, in the step from H_{k-1}; None where H_{k-1} is zero."""
    sublayers: Mapping[str, float] | None
    """Growth of the scale (mean over tokens, rms) by sublayer; None where the model declares no branches."""

    @property
    def a_rad(self) -> float:
        """<u, b>/d, rms units; see `Update`."""
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
    """What each term of the objective sees at each loop that it reads."""
    growth: GrowthLaw | None
    """Of the mean rms over at least four times the trained loops; None, with a note, where it could not be fitted."""
    depth: DepthUse
    """Of the exits 1..K."""
    overshoot: tuple[OvershootPoint, ...]
    """CE(K) up to twice the trained loops."""
    notes: tuple[str, ...]
    """What could not be measured, and why; and what a finding leaves open."""

    @property
    def blind(self) -> list[str]:
        """Names of the state variables that are hidden and carried on."""
        return [variable.name for variable in (self.scale, self.mean) if variable.blind]

    @property
    def verdict(self) -> Verdict:
        """The state of affairs in one word.

        blind_spot: a variable is carried on and hidden from every term. removed, damped: scale does not survive the
        loop. controlled: scale is carried on, and a term sees it.
        """
        if self.blind:
            return "blind_spot"
        if self.scale.carry == "removed":
            return "removed"
        return "damped" if self.scale.carry == "damped" else "controlled"
