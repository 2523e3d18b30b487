"""The records of a comparison of two models, and their text on one screen of 100 columns.

`Comparison` is what `loopverify.compare` returns.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeGuard

from loopverify.plain import plain_dict

__all__ = ["Agreement", "Comparison", "FirstDifference", "Gap", "LoopGaps", "Quantity", "Side"]

Agreement = Literal["identical", "rounding", "drift", "differs"]
Quantity = Literal["state", "scale", "direction", "logits"]

_WIDTH = 100
_MOST = 12
"""The most loops shown; of a longer run, the first and the last, and always the one where the models first differ."""
_SAYS_LITTLE = 0.1
"""With a larger tolerance, agreement excludes gross faults only, and the text says so."""
_HEADINGS = {
    "identical": "IDENTICAL",
    "rounding": "EQUAL UP TO ROUNDING",
    "drift": "DRIFT APART BY ROUNDING",
    "differs": "DIFFER",
}


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The difference between b and a in one quantity, at the token where it is largest."""

    error: float
    """Relative difference; inf where one of the two is not finite."""
    ulps: float
    """`error` in units of the coarser dtype's eps."""
    token: tuple[int, int]
    """(row of the batch, position) of that token."""


@dataclass(frozen=True, kw_only=True)
class LoopGaps:
    """The differences between b and a at one loop."""

    loop: int
    """k; 0 is the embedding."""
    state: Gap | None
    """rms(H_k(b) − H_k(a)) / rms(H_k(a)); None if states are not compared."""
    scale: Gap | None
    """|s_b − s_a| / s_a."""
    direction: Gap | None
    """rms(u_b − u_a)."""
    logits: Gap | None
    """max|z_b − z_a| / max|z_a|; None at loop 0."""
    argmax_flips: int | None
    """Tokens whose most likely next token differs. Within the tolerance of logits only near ties can flip."""
    cross_entropy: float | None
    """CE_b − CE_a, nats per token; None without targets. At most 2·max|z_b − z_a|."""
    tolerance: float
    """The largest error that each gap may have."""

    def first_beyond(self) -> tuple[Quantity, Gap] | None:
        """The first quantity whose error exceeds the tolerance: the state, or else the logits.

        Where only the scale or only the direction of the state exceeds it, that is named instead of the state.
        """
        if self._beyond(self.state):
            parts: tuple[tuple[Quantity, Gap | None], ...] = (("scale", self.scale), ("direction", self.direction))
            changed = [(name, gap) for name, gap in parts if gap is not None and self._beyond(gap)]
            return changed[0] if len(changed) == 1 else ("state", self.state)
        return ("logits", self.logits) if self._beyond(self.logits) else None

    def _beyond(self, gap: Gap | None) -> TypeGuard[Gap]:
        return gap is not None and not gap.error <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """The loop and quantity in which two models first differ."""

    loop: int
    quantity: Quantity
    gap: Gap
    tolerance: float
    of: Literal["step", "run"]
    """step: b's step (or readout) on a's state; run: each model on its own states."""
    sublayer: str | None = None
    """The first residual branch that differs within the step; None unless both models declare branches."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two models."""

    model: str
    path: str
    """How its logits were computed: 'readout', or the name of another path."""
    loops: int
    dtype: str
    """dtype of the states."""
    device: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of two models, loop by loop."""

    a: Side
    b: Side
    batch: int
    tokens: int
    """T, the length of each sequence."""
    dtype: str
    """The coarser dtype of the two computations; errors are given in its ulps."""
    eps: float
    """One ulp of 1.0 in that dtype."""
    tolerance: float
    """Relative error allowed per loop; after loop k, (k + 1) times as much."""
    seed: int
    """Seed of the random numbers that the models draw in evaluation mode."""
    versions: Mapping[str, str]
    run: tuple[LoopGaps, ...]
    """Each model on its own states, loops 0..K."""
    steps: tuple[LoopGaps, ...]
    """b's embedding, then b's step and readout on a's states, loops 0..K; empty if another path of b is compared."""
    growth: float | None
    """Factor per loop by which the relative error of the state grows (fit over the run); None if there is no error."""
    agreement: Agreement
    first: FirstDifference | None
    """Where the models first differ, or drift beyond the tolerance; None if they agree."""

    @property
    def agrees(self) -> bool:
        """Whether both are equal, or equal up to rounding, at every loop."""
        return self.agreement in ("identical", "rounding")

    @property
    def steps_agree(self) -> bool:
        """Whether no single step is at fault, regardless of what accumulates."""
        return self.agreement != "differs"

    def to_dict(self) -> dict[str, object]:
        """All fields as JSON values (see `loopverify.plain`); infinities and NaN are strings."""
        conclusions = {"agreement": self.agreement, "agrees": self.agrees, "steps_agree": self.steps_agree}
        return plain_dict({**conclusions, **asdict(self)})

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(c: Comparison) -> Iterator[str]:
    yield f"{c.a.model} (a) and {c.b.model} (b): {_HEADINGS[c.agreement]}"
    yield f"a: {_side(c.a)}; b: {_side(c.b)}; {c.batch} × {c.tokens} tokens, seed {c.seed}"
    yield f"tolerance per loop {c.tolerance:.2g} = {c.tolerance / c.eps:.3g} ulps of {c.dtype}"
    yield ""
    if c.steps:
        yield "     each model on its own states                            │ b's step and readout on a's states"
    yield _row("loop", ("state", "ulps", "scale", "turned", "logits", "flips", "ΔCE"), ("state", "ulps", "logits"))
    for entry, step in _shown(c):
        yield "   …" if entry is None else _loop(entry, step)
    yield ""
    for text in _conclusions(c):
        yield from textwrap.wrap(text, _WIDTH, initial_indent="→ ", subsequent_indent="  ")


def _side(side: Side) -> str:
    path = "" if side.path == "readout" else f" through {side.path!r}"
    return f"{side.loops} loops{path}, {side.dtype} on {side.device}"


def _shown(c: Comparison) -> list[tuple[LoopGaps | None, LoopGaps | None]]:
    steps = c.steps or (None,) * len(c.run)
    pairs = list(zip(c.run, steps, strict=True))
    if len(pairs) <= _MOST:
        return [*pairs]
    differing = c.first.loop if c.first else 0
    kept = [
        pair for pair in pairs if pair[0].loop < 4 or pair[0].loop > c.run[-1].loop - 4 or pair[0].loop == differing
    ]
    rows: list[tuple[LoopGaps | None, LoopGaps | None]] = []
    for before, pair in zip([None, *kept], kept, strict=False):
        if before is not None and pair[0].loop > before[0].loop + 1:
            rows.append((None, None))
        rows.append(pair)
    return rows


def _loop(entry: LoopGaps, step: LoopGaps | None) -> str:
    change = "–" if entry.cross_entropy is None else f"{entry.cross_entropy:+.1e}"
    flips = "–" if entry.argmax_flips is None else str(entry.argmax_flips)
    state, scale, direction, logits = map(_error, (entry.state, entry.scale, entry.direction, entry.logits))
    free = (state, _ulps(entry.state or entry.logits), scale, direction, logits, flips, change)
    forced = None if step is None else (_error(step.state), _ulps(step.state), _error(step.logits))
    return _row(str(entry.loop), free, forced)


def _row(loop: str, free: tuple[str, ...], forced: tuple[str, ...] | None) -> str:
    state, ulps, scale, turned, logits, flips, change = free
    left = f"{loop:>4} {state:>8} {ulps:>8} {scale:>8} {turned:>8} {logits:>8} {flips:>5} {change:>8}"
    return left if forced is None else f"{left} │ {forced[0]:>8} {forced[1]:>8} {forced[2]:>8}"


def _error(gap: Gap | None) -> str:
    return "–" if gap is None else "0" if gap.error == 0 else f"{gap.error:.1e}"


def _ulps(gap: Gap | None) -> str:
    return "–" if gap is None else f"{gap.ulps:.3g}"


def _conclusions(c: Comparison) -> Iterator[str]:
    if c.agreement == "identical":
        yield "Every state and every exit is equal."
    elif c.agreement == "rounding":
        yield f"Nothing differs by more than rounding explains. {_largest(c)}"
    elif c.first is not None and c.agreement == "drift":
        yield (
            f"Each single step agrees, but errors grow{_factor(c)} and exceed the tolerance: {_where(c.first)}. "
            "No step is at fault; compare fewer loops, or in a finer dtype."
        )
    elif c.first is not None:
        yield f"They first differ at {_where(c.first)}."
    furthest = c.run[-1].tolerance
    if c.agrees and furthest > _SAYS_LITTLE:
        yield (
            f"Rounding in {c.dtype} explains errors of up to {furthest:.2g} at loop {c.run[-1].loop}: agreement within "
            "so wide a tolerance excludes gross faults only. Compare in a finer dtype, over fewer loops, "
            "or with a tolerance."
        )


def _factor(c: Comparison) -> str:
    return "" if c.growth is None else f" ×{c.growth:.3g} per loop"


def _largest(c: Comparison) -> str:
    found = [(gap, name, e.loop) for e in c.run for name, gap in (("state", e.state), ("logits", e.logits)) if gap]
    gap, name, loop = max(found, key=lambda entry: entry[0].error)
    return f"Largest: {name} at loop {loop}, {gap.error:.2g} = {gap.ulps:.3g} ulps of {c.dtype}."


def _where(first: FirstDifference) -> str:
    row, position = first.gap.token
    place = "the embedding" if first.loop == 0 else f"loop {first.loop}"
    inside = f", first in sublayer {first.sublayer}" if first.sublayer else ""
    note = f"; {first.note}" if first.note else ""
    return (
        f"{place}: {first.quantity} off by {first.gap.error:.2g} = {first.gap.ulps:.3g} ulps "
        f"(tolerance {first.tolerance:.2g}), most at token {position} of row {row}{inside}{note}"
    )
