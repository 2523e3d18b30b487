"""Table 6 and Figures 5 and 6 of Sharma & Vu 2026 (appendix 11.1): the last state rescaled in front of its readout.

α runs over 0.1 to 10. The paper's models have 1.4B parameters and, like the published checkpoint of Figure 5, a norm
between loops. Here Table 6 is judged on the main ablation, and Figure 5 on a model with a norm between loops, read once
through its own readout and once with the readout's norm taken away.
"""

from __future__ import annotations

from loopverify.claims.claim import Claim, sentence
from loopverify.claims.p1 import limits
from loopverify.claims.p1.conditions import INTER_LOOP_NORM, PER_LOOP_RAW, PER_LOOP_RMSNORM, Condition
from loopverify.claims.p1.published import by_size, entry

__all__ = ["FIGURE_5", "TABLE_6"]


def _span(condition: Condition, size: str) -> float:
    """|CE(α = 0.1) − CE(α = 1)|, the part of the sweep that the table prints."""
    return abs(entry("T6", size, condition, "final_ce_alpha_0.1") - entry("T6", size, condition, "final_ce_alpha_1"))


TABLE_6: tuple[Claim, ...] = (
    Claim(
        id="P1.T6.sweep.rmsnorm.flat",
        sentence=sentence(
            f"{PER_LOOP_RMSNORM.words} does not notice its last state rescaled by 0.1 to 10: its loss moves by at most "
            f"{limits.T6_MOST_SPAN:g} nats per token"
        ),
        source="P1, Table 6, Figure 6",
        metric="sweep_span",
        form=PER_LOOP_RMSNORM.at_most(limits.T6_MOST_SPAN),
        published=by_size(lambda size: _span(PER_LOOP_RMSNORM, size)),
    ),
    Claim(
        id="P1.T6.sweep.raw.sharp",
        sentence=sentence(
            f"{PER_LOOP_RAW.words} notices its last state rescaled by 0.1 to 10: its loss moves by at least "
            f"{limits.T6_LEAST_SPAN:g} nats per token"
        ),
        source="P1, Table 6, Figure 6",
        metric="sweep_span",
        form=PER_LOOP_RAW.at_least(limits.T6_LEAST_SPAN),
        published=by_size(lambda size: _span(PER_LOOP_RAW, size)),
    ),
    Claim(
        id="P1.T6.radial.raw.vs_rmsnorm",
        sentence=sentence(
            f"the radial fraction at the last exit of {PER_LOOP_RAW.words} is at least {limits.T6_LEAST_CONTRAST:g} "
            f"times that of {PER_LOOP_RMSNORM.words}"
        ),
        source="P1, Table 6",
        metric="r@4",
        form=PER_LOOP_RAW.exceeds(PER_LOOP_RMSNORM, by="ratio", least=limits.T6_LEAST_CONTRAST),
        published=by_size(
            lambda size: entry("T6", size, PER_LOOP_RAW, "r_K") / entry("T6", size, PER_LOOP_RMSNORM, "r_K")
        ),
    ),
)

FIGURE_5: tuple[Claim, ...] = (
    Claim(
        id="P1.F5.sweep.with_norm",
        sentence=sentence(
            f"{INTER_LOOP_NORM.words} does not notice its last state rescaled by 0.1 to 10: its loss moves by at most "
            f"{limits.T6_MOST_SPAN:g} nats per token"
        ),
        source="P1, appendix 11, Figure 5",
        metric="sweep_span",
        form=INTER_LOOP_NORM.at_most(limits.T6_MOST_SPAN),
    ),
    Claim(
        id="P1.F5.sweep.without_norm",
        sentence=sentence(
            f"{INTER_LOOP_NORM.words}, read without the norm of its readout, notices its last state rescaled by 0.1 "
            f"to 10: its loss moves by at least {limits.T6_LEAST_SPAN:g} nats per token"
        ),
        source="P1, appendix 11, Figure 5",
        metric="bare_sweep_span",
        form=INTER_LOOP_NORM.at_least(limits.T6_LEAST_SPAN),
    ),
)
