"""Table 12 and Figure 3 of Sharma & Vu 2026 (section 5, appendix 15): the terms of Lemma 2 on trained models.

Runs of 30 loops; 'late' is the mean over the loops from the tenth on. rms units throughout: a_rad = ⟨u, b⟩/d.
"""

from __future__ import annotations

from loopverify.claims import paper
from loopverify.claims.claim import Bound, Claim, Comparison
from loopverify.claims.words import WORDS, sentence

__all__ = ["TABLE_12"]

LEAST_SIZE = 30.0
"""Ratio of update sizes, hidden over visible scale; the paper has 922 and 40 per-loop, 3,013 terminal."""
LEAST_VELOCITY = 1.0
"""rms a loop by which scale grows where it is hidden; the paper has 258 and 14."""
MOST_RATIO = 1.5
"""rms(b)/|a_rad| of an update that is mostly radial; the paper has 1.00 to 1.46."""
MOST_GROWTH_GAP = 0.05
"""Relative error of a_rad as a forecast of the growth of scale; the paper says within 0.03."""
MOST_SLOPE_GAP = 0.25
"""|slope − 1| of log angular step in log 1/s; the paper says 'shrinks like 1/s'."""

_T12 = "P1.T12_residual_update_loops_ge_10_of_30"
_HIDDEN = "per_loop/rmsnorm"
_FIGURE_3 = "P1, section 5, Figure 3"


def _size(loss: str) -> Claim:
    hidden, visible = f"{loss}/rmsnorm", f"{loss}/raw"
    return Claim(
        id=f"P1.T12.size.{loss}",
        sentence=sentence(
            f"late loops update the state at least {LEAST_SIZE:g} times as strongly under {WORDS[hidden]} "
            f"as under {WORDS[visible]}"
        ),
        source="P1, Table 12",
        metric="b@late",
        form=Comparison(left=hidden, right=visible, by="ratio", least=LEAST_SIZE),
        published=paper.by_size(
            lambda size: paper.entry(_T12, size, hidden, "b_rms") / paper.entry(_T12, size, visible, "b_rms")
        ),
    )


def _mostly_radial(condition: str) -> Claim:
    return Claim(
        id=f"P1.T12.radial.{condition.replace('/', '.')}",
        sentence=sentence(
            f"late updates of {WORDS[condition]} are mostly radial: at most {MOST_RATIO:g} times their radial part"
        ),
        source="P1, Table 12",
        metric="b_over_a@late",
        form=Bound(condition=condition, side="at most", value=MOST_RATIO),
        published=paper.by_size(lambda size: paper.entry(_T12, size, condition, "b_rms_over_abs_a_rad")),
    )


TABLE_12: tuple[Claim, ...] = (
    _size("per_loop"),
    _size("terminal"),
    _mostly_radial("per_loop/raw"),
    _mostly_radial("per_loop/rmsnorm"),
    _mostly_radial("terminal/rmsnorm"),
    Claim(
        id="P1.T12.outward.per_loop.rmsnorm",
        sentence=sentence(
            f"{WORDS[_HIDDEN]} pushes its state outward at every late loop: a_rad is at least {LEAST_VELOCITY:g} in rms"
        ),
        source="P1, Table 12",
        metric="a_rad@late",
        form=Bound(condition=_HIDDEN, side="at least", value=LEAST_VELOCITY),
        published=paper.by_size(lambda size: paper.entry(_T12, size, _HIDDEN, "a_rad")),
    ),
    Claim(
        id="P1.T12.growth.per_loop.rmsnorm",
        sentence=sentence(
            f"the radial part alone accounts for the late growth of scale of {WORDS[_HIDDEN]}, to a relative error of "
            f"at most {MOST_GROWTH_GAP:g}"
        ),
        source=_FIGURE_3,
        metric="growth_gap@late",
        form=Bound(condition=_HIDDEN, side="at most", value=MOST_GROWTH_GAP),
        published={"44m": 0.03},
    ),
    Claim(
        id="P1.T12.turning.per_loop.rmsnorm",
        sentence=sentence(
            f"late angular steps of {WORDS[_HIDDEN]} shrink like 1/s: the slope of their logarithms is 1, "
            f"to {MOST_SLOPE_GAP:g}"
        ),
        source=_FIGURE_3,
        metric="step_slope_gap@late",
        form=Bound(condition=_HIDDEN, side="at most", value=MOST_SLOPE_GAP),
    ),
)
