"""Table 6 and Figures 5 and 6 of Sharma & Vu 2026 (appendix 11.1): the last state rescaled in front of its readout.

α ranges from 0.1 to 10. The paper's models have 1.4B parameters and, like the published checkpoint of Figure 5, a norm
between loops. Here Table 6 is judged on the main ablation, and Figure 5 on a model with a norm between loops, read once
through its own readout and once without the readout's norm.
"""

from __future__ import annotations

from loopverify.claims.claim import Claim
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import INTER_LOOP_NORM, PER_LOOP_RAW, PER_LOOP_RMSNORM
from loopverify.claims.p1.published import entry, ratio
from loopverify.claims.template import Condition, claims

__all__ = ["FIGURE_5", "TABLE_6"]

_SPAN = "P1, Table 6, Figure 6"
_FIGURE = "P1, appendix 11, Figure 5"
_FLAT = "{0} does not notice its last state rescaled by 0.1 to 10: its loss moves by at most {limit:g} nats per token"
_SHARP = "notices its last state rescaled by 0.1 to 10: its loss moves by at least {limit:g} nats per token"


def _span(size: str, condition: Condition) -> float:
    """|CE(α = 0.1) − CE(α = 1)|, the part of the sweep printed in the table."""
    return abs(entry("T6", size, condition, "final_ce_alpha_0.1") - entry("T6", size, condition, "final_ce_alpha_1"))


TABLE_6: tuple[Claim, ...] = (
    *claims(
        "P1.T6.sweep.rmsnorm.flat",
        _FLAT,
        PER_LOOP_RMSNORM,
        form=("at most", limits.T6_MOST_SPAN),
        metric="sweep_span",
        source=_SPAN,
        published=_span,
    ),
    *claims(
        "P1.T6.sweep.raw.sharp",
        f"{{0}} {_SHARP}",
        PER_LOOP_RAW,
        form=("at least", limits.T6_LEAST_SPAN),
        metric="sweep_span",
        source=_SPAN,
        published=_span,
    ),
    *claims(
        "P1.T6.radial.raw.vs_rmsnorm",
        "the radial fraction at the last exit of {0} is at least {limit:g} times that of {1}",
        (PER_LOOP_RAW, PER_LOOP_RMSNORM),
        form=("ratio", limits.T6_LEAST_CONTRAST),
        metric="r@4",
        source="P1, Table 6",
        published=ratio("T6", "r_K"),
    ),
)

FIGURE_5: tuple[Claim, ...] = (
    *claims(
        "P1.F5.sweep.with_norm",
        _FLAT,
        INTER_LOOP_NORM,
        form=("at most", limits.T6_MOST_SPAN),
        metric="sweep_span",
        source=_FIGURE,
    ),
    *claims(
        "P1.F5.sweep.without_norm",
        f"{{0}}, read without the norm of its readout, {_SHARP}",
        INTER_LOOP_NORM,
        form=("at least", limits.T6_LEAST_SPAN),
        metric="bare_sweep_span",
        source=_FIGURE,
    ),
)
