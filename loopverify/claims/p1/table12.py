"""Table 12 and Figure 3 of Sharma & Vu 2026 (section 5, appendix 15): the terms of Lemma 2 on trained models.

Runs of 30 loops; 'late' is the mean over the loops from the tenth on. rms units throughout: a_rad = ⟨u, b⟩/d.
"""

from __future__ import annotations

from loopverify.claims.claim import Claim
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import PER_LOOP_RAW, PER_LOOP_RMSNORM, TERMINAL_RAW, TERMINAL_RMSNORM
from loopverify.claims.p1.published import column, ratio
from loopverify.claims.template import claims

__all__ = ["TABLE_12"]

_TABLE, _FIGURE = "P1, Table 12", "P1, section 5, Figure 3"

TABLE_12: tuple[Claim, ...] = (
    *claims(
        "P1.T12.size.{0.loss}",
        "late loops update the state at least {limit:g} times as strongly under {0} as under {1}",
        (PER_LOOP_RMSNORM, PER_LOOP_RAW),
        (TERMINAL_RMSNORM, TERMINAL_RAW),
        form=("ratio", limits.T12_LEAST_SIZE),
        metric="b@late",
        source=_TABLE,
        published=ratio("T12", "b_rms"),
    ),
    *claims(
        "P1.T12.radial.{0.slug}",
        "late updates of {0} are mostly radial: at most {limit:g} times their radial part",
        *(PER_LOOP_RAW, PER_LOOP_RMSNORM, TERMINAL_RMSNORM),
        form=("at most", limits.T12_MOST_RATIO),
        metric="b_over_a@late",
        source=_TABLE,
        published=column("T12", "b_rms_over_abs_a_rad"),
    ),
    *claims(
        "P1.T12.outward.{0.slug}",
        "{0} pushes its state outward at every late loop: a_rad is at least {limit:g} in rms",
        PER_LOOP_RMSNORM,
        form=("at least", limits.T12_LEAST_VELOCITY),
        metric="a_rad@late",
        source=_TABLE,
        published=column("T12", "a_rad"),
    ),
    *claims(
        "P1.T12.growth.{0.slug}",
        "the radial part alone accounts for the late growth of scale of {0}, to a relative error of at most {limit:g}",
        PER_LOOP_RMSNORM,
        form=("at most", limits.T12_MOST_GROWTH_GAP),
        metric="growth_gap@late",
        source=_FIGURE,
        published=column("S5", "growth_gap"),
    ),
    *claims(
        "P1.T12.turning.{0.slug}",
        "late angular steps of {0} shrink like 1/s: the slope of their logarithms is 1, to {limit:g}",
        PER_LOOP_RMSNORM,
        form=("at most", limits.T12_MOST_SLOPE_GAP),
        metric="step_slope_gap@late",
        source=_FIGURE,
    ),
)
