"""Table 12 and Figure 3 of Sharma & Vu 2026 (section 5, appendix 15): the terms of Lemma 2 on trained models.

Runs of 30 loops; 'late' is the mean over the loops from the tenth on. rms units throughout: a_rad = ⟨u, b⟩/d.
"""

from __future__ import annotations

from loopverify.claims.claim import Claim, sentence
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import (
    PER_LOOP_RAW,
    PER_LOOP_RMSNORM,
    TERMINAL_RAW,
    TERMINAL_RMSNORM,
    Condition,
)
from loopverify.claims.p1.published import by_size, entry

__all__ = ["TABLE_12"]

_HIDDEN = PER_LOOP_RMSNORM
_FIGURE_3 = "P1, section 5, Figure 3"


def _size(hidden: Condition, visible: Condition) -> Claim:
    return Claim(
        id=f"P1.T12.size.{hidden.loss}",
        sentence=sentence(
            f"late loops update the state at least {limits.T12_LEAST_SIZE:g} times as strongly under {hidden.words} "
            f"as under {visible.words}"
        ),
        source="P1, Table 12",
        metric="b@late",
        form=hidden.exceeds(visible, by="ratio", least=limits.T12_LEAST_SIZE),
        published=by_size(lambda size: entry("T12", size, hidden, "b_rms") / entry("T12", size, visible, "b_rms")),
    )


def _mostly_radial(condition: Condition) -> Claim:
    return Claim(
        id=f"P1.T12.radial.{condition.slug}",
        sentence=sentence(
            f"late updates of {condition.words} are mostly radial: at most {limits.T12_MOST_RATIO:g} times their "
            "radial part"
        ),
        source="P1, Table 12",
        metric="b_over_a@late",
        form=condition.at_most(limits.T12_MOST_RATIO),
        published=by_size(lambda size: entry("T12", size, condition, "b_rms_over_abs_a_rad")),
    )


TABLE_12: tuple[Claim, ...] = (
    _size(PER_LOOP_RMSNORM, PER_LOOP_RAW),
    _size(TERMINAL_RMSNORM, TERMINAL_RAW),
    _mostly_radial(PER_LOOP_RAW),
    _mostly_radial(PER_LOOP_RMSNORM),
    _mostly_radial(TERMINAL_RMSNORM),
    Claim(
        id=f"P1.T12.outward.{_HIDDEN.slug}",
        sentence=sentence(
            f"{_HIDDEN.words} pushes its state outward at every late loop: a_rad is at least "
            f"{limits.T12_LEAST_VELOCITY:g} in rms"
        ),
        source="P1, Table 12",
        metric="a_rad@late",
        form=_HIDDEN.at_least(limits.T12_LEAST_VELOCITY),
        published=by_size(lambda size: entry("T12", size, _HIDDEN, "a_rad")),
    ),
    Claim(
        id=f"P1.T12.growth.{_HIDDEN.slug}",
        sentence=sentence(
            f"the radial part alone accounts for the late growth of scale of {_HIDDEN.words}, to a relative error of "
            f"at most {limits.T12_MOST_GROWTH_GAP:g}"
        ),
        source=_FIGURE_3,
        metric="growth_gap@late",
        form=_HIDDEN.at_most(limits.T12_MOST_GROWTH_GAP),
        published=by_size(lambda size: entry("S5", size, _HIDDEN, "growth_gap")),
    ),
    Claim(
        id=f"P1.T12.turning.{_HIDDEN.slug}",
        sentence=sentence(
            f"late angular steps of {_HIDDEN.words} shrink like 1/s: the slope of their logarithms is 1, "
            f"to {limits.T12_MOST_SLOPE_GAP:g}"
        ),
        source=_FIGURE_3,
        metric="step_slope_gap@late",
        form=_HIDDEN.at_most(limits.T12_MOST_SLOPE_GAP),
    ),
)
