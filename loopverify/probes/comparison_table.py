"""A comparison on one screen of 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from loopverify.probes.comparison import Comparison, Gap, LoopGaps, Parting, Side

__all__ = ["render"]

_WIDTH = 100
_MOST = 12
"""Loops shown; of more, the first and the last, and always the one where the models part."""
_SAYS_LITTLE = 0.1
"""A tolerated relative error above this hides any but gross faults."""
_HEADINGS = {
    "identical": "IDENTICAL",
    "rounding": "THE SAME TO ROUNDING",
    "drift": "DRIFT APART BY ROUNDING",
    "parts": "PART",
}


def render(comparison: Comparison) -> str:
    """The text of a comparison."""
    return "\n".join(_lines(comparison))


def _lines(c: Comparison) -> Iterator[str]:
    yield f"{c.a.model} (a) and {c.b.model} (b): {_HEADINGS[c.agreement]}"
    yield f"a: {_side(c.a)}; b: {_side(c.b)}; {c.batch} × {c.tokens} tokens, seed {c.seed}"
    yield f"a loop may be off by {c.tolerance:.2g} = {c.tolerance / c.eps:.3g} ulps of {c.dtype}"
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
    parted = c.first.loop if c.first else 0
    kept = [pair for pair in pairs if pair[0].loop < 4 or pair[0].loop > c.run[-1].loop - 4 or pair[0].loop == parted]
    rows: list[tuple[LoopGaps | None, LoopGaps | None]] = []
    for before, pair in zip([None, *kept], kept, strict=False):
        if before is not None and pair[0].loop > before[0].loop + 1:
            rows.append((None, None))
        rows.append(pair)
    return rows


def _loop(entry: LoopGaps, step: LoopGaps | None) -> str:
    change = "–" if entry.cross_entropy is None else f"{entry.cross_entropy:+.1e}"
    flips = "–" if entry.argmax_flips is None else str(entry.argmax_flips)
    free = (
        _error(entry.state),
        _ulps(entry.state or entry.logits),
        _error(entry.scale),
        _error(entry.direction),
        _error(entry.logits),
        flips,
        change,
    )
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
            f"Each single step agrees, but errors grow{_factor(c)} and pass the tolerance: {_where(c.first)}. "
            "No step is at fault; compare fewer loops, or in a finer dtype."
        )
    elif c.first is not None:
        yield f"They part at {_where(c.first)}."
    furthest = c.run[-1].tolerance
    if c.agrees and furthest > _SAYS_LITTLE:
        yield (
            f"Rounding in {c.dtype} explains errors of up to {furthest:.2g} at loop {c.run[-1].loop}, so that this "
            "agreement says little. Compare in a finer dtype, over fewer loops, or with a tolerance."
        )


def _factor(c: Comparison) -> str:
    return "" if c.growth is None else f" ×{c.growth:.3g} a loop"


def _largest(c: Comparison) -> str:
    found = [(gap, name, e.loop) for e in c.run for name, gap in (("state", e.state), ("logits", e.logits)) if gap]
    gap, name, loop = max(found, key=lambda entry: entry[0].error)
    return f"Largest: {name} at loop {loop}, {gap.error:.2g} = {gap.ulps:.3g} ulps of {c.dtype}."


def _where(first: Parting) -> str:
    row, position = first.gap.token
    place = "the embedding" if first.loop == 0 else f"loop {first.loop}"
    inside = f", first in sublayer {first.sublayer}" if first.sublayer else ""
    note = f"; {first.note}" if first.note else ""
    return (
        f"{place}: {first.quantity} off by {first.gap.error:.2g} = {first.gap.ulps:.3g} ulps "
        f"(tolerance {first.tolerance:.2g}), most at token {position} of row {row}{inside}{note}"
    )
