"""Table 6 and Figures 5 and 6 of Sharma & Vu 2026 (appendix 11.1): the last state rescaled in front of its readout.

α runs over 0.1 to 10. The paper's models have 1.4B parameters and, like the published checkpoint of Figure 5, a norm
between loops. Here Table 6 is asked of the main ablation, and Figure 5 of a model with a norm between loops, read once
through its own readout and once with the readout's norm taken away.
"""

from __future__ import annotations

from loopverify.claims import paper
from loopverify.claims.claim import Bound, Claim, Comparison
from loopverify.claims.words import WORDS, sentence

__all__ = ["FIGURE_5", "TABLE_6"]

MOST_SPAN = 0.01
"""Nats a token between the least and the largest CE over α of a readout that hides scale; the paper prints 0.00."""
LEAST_SPAN = 0.1
"""The same of one that shows it; the paper has 87."""
LEAST_CONTRAST = 100.0
"""Ratio of radial fractions at the last exit; the paper has 1,717."""

_T6 = "P1.T6_1.4b_diagnostic"
_RAW, _RMSNORM, _BETWEEN = "per_loop/raw", "per_loop/rmsnorm", "per_loop/rmsnorm/inter_loop_norm"


def _span(row: str) -> float:
    """|CE(α = 0.1) − CE(α = 1)|, the part of the sweep that the table prints."""
    return abs(paper.entry(_T6, row, "final_ce_alpha_0.1") - paper.entry(_T6, row, "final_ce_alpha_1"))


TABLE_6: tuple[Claim, ...] = (
    Claim(
        id="P1.T6.sweep.rmsnorm.flat",
        sentence=sentence(
            f"{WORDS[_RMSNORM]} does not notice its last state rescaled by 0.1 to 10: its loss moves by at most "
            f"{MOST_SPAN:g} nats a token"
        ),
        source="P1, Table 6, Figure 6",
        metric="sweep_span",
        form=Bound(condition=_RMSNORM, side="at most", value=MOST_SPAN),
        published={"1.4b": _span("baseline")},
    ),
    Claim(
        id="P1.T6.sweep.raw.sharp",
        sentence=sentence(
            f"{WORDS[_RAW]} notices its last state rescaled by 0.1 to 10: its loss moves by at least "
            f"{LEAST_SPAN:g} nats a token"
        ),
        source="P1, Table 6, Figure 6",
        metric="sweep_span",
        form=Bound(condition=_RAW, side="at least", value=LEAST_SPAN),
        published={"1.4b": _span("no_readout_norm")},
    ),
    Claim(
        id="P1.T6.radial.raw.vs_rmsnorm",
        sentence=sentence(
            f"the radial fraction at the last exit of {WORDS[_RAW]} is at least {LEAST_CONTRAST:g} times "
            f"that of {WORDS[_RMSNORM]}"
        ),
        source="P1, Table 6",
        metric="r@4",
        form=Comparison(left=_RAW, right=_RMSNORM, by="ratio", least=LEAST_CONTRAST),
        published={"1.4b": paper.entry(_T6, "no_readout_norm", "r_K") / paper.entry(_T6, "baseline", "r_K")},
    ),
)

FIGURE_5: tuple[Claim, ...] = (
    Claim(
        id="P1.F5.sweep.with_norm",
        sentence=sentence(
            f"{WORDS[_BETWEEN]} does not notice its last state rescaled by 0.1 to 10: its loss moves by at most "
            f"{MOST_SPAN:g} nats a token"
        ),
        source="P1, appendix 11, Figure 5",
        metric="sweep_span",
        form=Bound(condition=_BETWEEN, side="at most", value=MOST_SPAN),
    ),
    Claim(
        id="P1.F5.sweep.without_norm",
        sentence=sentence(
            f"{WORDS[_BETWEEN]}, read without the norm of its readout, notices its last state rescaled by 0.1 to 10: "
            f"its loss moves by at least {LEAST_SPAN:g} nats a token"
        ),
        source="P1, appendix 11, Figure 5",
        metric="bare_sweep_span",
        form=Bound(condition=_BETWEEN, side="at least", value=LEAST_SPAN),
    ),
)
