"""An audit on one screen of 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TypeVar

from loopverify.auditing.depth import OvershootPoint
from loopverify.auditing.findings import Findings, LoopRecord, StateVariable
from loopverify.auditing.gradients import RadialGradient

__all__ = ["WIDTH", "render"]

WIDTH = 100
_MOST = 8
"""The most loops shown; of a longer run, the first and the last."""

_Row = TypeVar("_Row")


def render(audit: Findings, advice: Sequence[str]) -> str:
    """The text of an audit."""
    return "\n".join(_lines(audit, advice))


def _lines(audit: Findings, advice: Sequence[str]) -> Iterator[str]:
    yield from _head(audit)
    yield ""
    yield from _loops(audit)
    yield ""
    yield from _exits(audit)
    yield ""
    yield from _curves(audit)
    yield ""
    for text in (*advice, *(f"Note: {note}" for note in audit.notes)):
        yield from textwrap.wrap(text, WIDTH, initial_indent="→ ", subsequent_indent="  ")


def _head(audit: Findings) -> Iterator[str]:
    facts = audit.facts
    yield _cut(f"{facts.model} under {facts.objective}: {audit.verdict.upper().replace('_', ' ')}")
    precision = facts.dtype if facts.dtype == facts.working_dtype else f"{facts.dtype} / {facts.working_dtype}"
    yield _cut(
        f"{facts.loops} loops ({facts.trained_loops} trained), {facts.batch} × {facts.tokens} tokens, "
        f"{facts.channels} channels, {precision} on {facts.device}"
    )
    yield _cut(", ".join(f"{name} {version}" for name, version in facts.versions.items()) + f", seed {facts.seed}")
    for variable in (audit.scale, audit.mean):
        yield _cut(_variable(variable))


def _variable(variable: StateVariable) -> str:
    seen = f", seen by {', '.join(variable.seen_by)}" if variable.seen_by else ""
    spot = "   ← blind spot" if variable.blind else ""
    return f"  {variable.name:<6} {variable.visibility}{seen}; {variable.carry} (c = {variable.factor:.4g}){spot}"


def _loops(audit: Findings) -> Iterator[str]:
    yield "     tokenwise ||H_k||_2        │ update (rms units)                  │ radial part of gradient"
    yield "loop     mean      p99      max │    a_rad   b_perp   growth     turn │       direct     indirect"
    for record in _rows(audit.per_loop):
        yield _loop(record) if record else "   …"


def _loop(record: LoopRecord) -> str:
    norms, update = record.norms, record.update
    sizes = " ".join(_number(x, 4) for x in (norms.mean, norms.p99, norms.max))
    moves = " ".join(_number(x, 3) for x in (update.a_rad, update.b_perp, update.growth, update.angular_step))
    return f"{record.loop:4d} {sizes} │ {moves} │ {_fraction(record.direct):>12} {_fraction(record.indirect):>12}"


def _number(value: float, digits: int) -> str:
    """`value` in eight columns, with up to `digits` digits."""
    texts = (f"{value:8.{n}g}" for n in range(digits, 0, -1))
    return next(text for text in texts if len(text) <= 8 or text.endswith(("inf", "nan")))


def _fraction(gradient: RadialGradient) -> str:
    if gradient.fraction is None:
        return "none"
    return f"{gradient.fraction:.2g}" + (" floor" if gradient.fraction <= gradient.floor else "")


def _exits(audit: Findings) -> Iterator[str]:
    yield "exit     CE   ν        logits' answer to scale × 1/16, 1/4, 4, 16, 1024"
    for view in _rows(audit.exits):
        if view is None:
            yield "   …"
            continue
        factor = "–" if view.visibility_factor is None else f"{view.visibility_factor:.2g}"
        answers = " ".join(_number(x, 2) for x in (*(point.response for point in view.sweep), view.drift_response))
        yield f"{view.loop:4d} {view.loss:6.3f}   {factor:<8} {answers}   {view.visibility}"


def _curves(audit: Findings) -> Iterator[str]:
    growth = audit.growth
    if growth is not None:
        yield _cut(
            f"growth     {growth.law} over {growth.loops} loops (error {100 * growth.error:.2g} %), "
            f"then {growth.runner_up} ({100 * growth.runner_up_error:.2g} %)"
        )
    shares = ", ".join(f"{name} {share:+.3g}" for name, share in _by_sublayer(audit))
    if shares:
        yield _cut(f"by part    (rms) {shares}")
    yield f"depth use  CE(1) − CE({audit.facts.loops}) = {audit.depth.gain:+.4f} nats per token"
    yield _cut("overshoot  CE at K/r0 " + "  ".join(f"{point.ratio:.3g}: {point.loss:.3f}" for point in _spread(audit)))


def _spread(audit: Findings) -> list[OvershootPoint]:
    """The points of the overshoot curve at its ends and near K/r0 = 0.5, 1, 1.5 and 2."""
    points = audit.overshoot
    near = [min(points, key=lambda point: abs(point.ratio - ratio)) for ratio in (0, 0.5, 1, 1.5, 2)]
    return list(dict.fromkeys([*near, points[-1]]))


def _by_sublayer(audit: Findings) -> list[tuple[str, float]]:
    """Growth over all loops by sublayer: the three largest."""
    total: dict[str, float] = {}
    for record in audit.per_loop:
        for name, share in (record.sublayers or {}).items():
            total[name] = total.get(name, 0.0) + share
    return sorted(total.items(), key=lambda item: -abs(item[1]))[:3]


def _rows(records: Sequence[_Row]) -> list[_Row | None]:
    """All records, or the first and the last with a gap (None) between."""
    if len(records) <= _MOST:
        return list(records)
    return [*records[: _MOST // 2], None, *records[-(_MOST // 2) + 1 :]]


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
