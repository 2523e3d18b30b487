"""What depth is worth: Tables 5, 11 and 14, and Figures 1 and 7, of Sharma & Vu 2026 (sections 4 and 6).

CE(k) is exit k of a run of the trained loops, except in Figure 7, whose points are runs of K loops. That per-loop exits
are usable and terminal ones are not is among the claims of Table 2.
"""

from __future__ import annotations

import math

from loopverify.claims import paper
from loopverify.claims.claim import Bound, Claim, Comparison
from loopverify.claims.table3 import MOST_OF_FLOOR, VISIBLE, float32_floor
from loopverify.claims.words import CONTROLLED, WORDS, sentence

__all__ = ["FIGURE_7", "TABLE_5", "TABLE_11", "TABLE_14"]

MOST_GAIN = 0.01
"""Nats a token that loops may gain a model that does not use its depth; the paper has −0.002 and 0.002."""
LEAST_GAIN = 0.01
"""Nats a token that loops gain a model that does, alone and over one that does not; the paper has 0.03 to 0.04."""
LEAST_FIRST_EXIT = 0.02
"""Nats a token by which hidden scale is worse at exit 1 under per-loop loss; the paper has 0.06 to 0.08."""
LEAST_PLACEMENT = 0.3
"""Nats a token of gap from exit 1 to 4, terminal over per-loop loss; the paper has 4 to 37."""
LEAST_FAILURE = 1.0
"""Nats a token by which shallow exits fail under terminal loss; the paper has 4 and more."""
MOST_OVERSHOOT = 0.05
"""Nats a token between runs of 3, 4 and 8 loops of a model that normalizes between loops; the paper shows none."""

_T5, _T11, _T14 = "P1.T5_variable_depth_ppl", "P1.T11_decomposition", "P1.T14_terminal_variable_depth_ce_129m"
_HIDDEN = "per_loop/rmsnorm"
_BETWEEN = "per_loop/rmsnorm/inter_loop_norm"
_GAP = "ce@1-ce@4"


def _gain(row: str, size: str) -> float:
    """CE(1) − CE(4) by the perplexities of Table 5, which Table 11 rounds to 0.01."""
    return math.log(paper.entry(_T5, row, size, "K1") / paper.entry(_T5, row, size, "K4"))


def _invariant() -> Claim:
    return Claim(
        id="P1.T5.invariant.rmsnorm",
        sentence=sentence(f"{WORDS[_HIDDEN]} gains at most {MOST_GAIN:g} nats a token from all loops after the first"),
        source="P1, Table 5",
        metric=_GAP,
        form=Bound(condition=_HIDDEN, side="at most", value=MOST_GAIN),
        published=paper.by_size(lambda size: _gain("rmsnorm", size)),
    )


def _uses_depth(name: str) -> Claim:
    return Claim(
        id=f"P1.T5.depth.{name}",
        sentence=sentence(f"{WORDS[CONTROLLED[name]]} gains at least {LEAST_GAIN:g} nats a token from its loops"),
        source="P1, Table 5",
        metric=_GAP,
        form=Bound(condition=CONTROLLED[name], side="at least", value=LEAST_GAIN),
        published=paper.by_size(lambda size: _gain(name, size)),
    )


def _uses_more_depth(name: str) -> Claim:
    return Claim(
        id=f"P1.T5.depth.{name}.vs_rmsnorm",
        sentence=sentence(
            f"{WORDS[CONTROLLED[name]]} gains at least {LEAST_GAIN:g} nats a token more from its loops "
            f"than {WORDS[_HIDDEN]}"
        ),
        source="P1, Table 5",
        metric=_GAP,
        form=Comparison(left=CONTROLLED[name], right=_HIDDEN, by="difference", least=LEAST_GAIN),
        published=paper.by_size(lambda size: _gain(name, size) - _gain("rmsnorm", size)),
    )


def _first_exit(name: str) -> Claim:
    return Claim(
        id=f"P1.T5.first_exit.vs_{name}",
        sentence=sentence(
            f"{WORDS[_HIDDEN]} is at least {LEAST_FIRST_EXIT:g} nats a token worse at its first exit "
            f"than {WORDS[CONTROLLED[name]]}"
        ),
        source="P1, section 6, Table 5, Figure 4",
        metric="ce@1",
        form=Comparison(left=_HIDDEN, right=CONTROLLED[name], by="difference", least=LEAST_FIRST_EXIT),
        published=paper.by_size(
            lambda size: math.log(paper.entry(_T5, "rmsnorm", size, "K1") / paper.entry(_T5, name, size, "K1"))
        ),
    )


def _placement(readout: str) -> Claim:
    terminal, per_loop = f"terminal/{readout}", f"per_loop/{readout}"
    return Claim(
        id=f"P1.T11.exits.{readout}",
        sentence=sentence(
            f"the gap from the first to the last exit is at least {LEAST_PLACEMENT:g} nats a token larger under "
            f"{WORDS[terminal]} than under {WORDS[per_loop]}"
        ),
        source="P1, Table 11, Figure 1",
        metric=_GAP,
        form=Comparison(left=terminal, right=per_loop, by="difference", least=LEAST_PLACEMENT),
        published=paper.by_size(lambda size: paper.exit_gap(terminal, size) - paper.exit_gap(per_loop, size)),
    )


def _terminal_visibility(readout: str, *, visible: bool) -> Claim:
    condition = f"terminal/{readout}"
    told = (
        f"shows its loss the scale of the last state: at least {VISIBLE:g} of the gradient is radial"
        if visible
        else "hides the scale of the last state from its loss: the radial fraction of the gradient is at most "
        f"{MOST_OF_FLOOR:g} times what rounding leaves"
    )
    return Claim(
        id=f"P1.T11.radial.terminal.{readout}",
        sentence=sentence(f"{WORDS[condition]} {told}"),
        source="P1, Table 11",
        metric="r@4" if visible else "r_over_floor@4",
        form=Bound(condition=condition, side="at least", value=VISIBLE)
        if visible
        else Bound(condition=condition, side="at most", value=MOST_OF_FLOOR),
        published=paper.by_size(
            lambda size: paper.entry(_T11, size, condition, "r_K") / (1 if visible else float32_floor(size))
        ),
    )


def _fails(readout: str, exit_: int) -> Claim:
    condition = f"terminal/{readout}"
    # The raw row is printed as '>27.6' and '>13.8': these are the least that the differences can be.
    exits = [float(str(printed).lstrip(">")) for printed in paper.tables()[_T14][condition]]
    return Claim(
        id=f"P1.T14.fails.{readout}.exit_{exit_}",
        sentence=sentence(
            f"{WORDS[condition]} is at least {LEAST_FAILURE:g} nats a token worse at exit {exit_} than at exit 4"
        ),
        source="P1, Table 14",
        metric=f"ce@{exit_}-ce@4",
        form=Bound(condition=condition, side="at least", value=LEAST_FAILURE),
        published={"129m": exits[exit_ - 1] - exits[3]},
    )


def _monotone(loop: int) -> Claim:
    condition = "terminal/rmsnorm"
    published = paper.tables()[_T14][condition]
    return Claim(
        id=f"P1.T14.monotone.rmsnorm.exit_{loop + 1}",
        sentence=sentence(f"{WORDS[condition]} is no worse at exit {loop + 1} than at exit {loop}"),
        source="P1, Table 14",
        metric=f"ce@{loop}-ce@{loop + 1}",
        form=Bound(condition=condition, side="at least", value=0.0),
        published={"129m": published[loop - 1] - published[loop]},
    )


def _flat(name: str, metric: str, told: str) -> Claim:
    return Claim(
        id=f"P1.F7.{name}",
        sentence=sentence(f"{WORDS[_BETWEEN]} {told} by at most {MOST_OVERSHOOT:g} nats a token"),
        source="P1, appendix 19, Figure 7",
        metric=metric,
        form=Bound(condition=_BETWEEN, side="at most", value=MOST_OVERSHOOT),
    )


TABLE_5: tuple[Claim, ...] = (
    _invariant(),
    *(_uses_depth(name) for name in CONTROLLED),
    *(_uses_more_depth(name) for name in CONTROLLED),
    *(_first_exit(name) for name in CONTROLLED),
)

TABLE_11: tuple[Claim, ...] = (
    _placement("rmsnorm"),
    _placement("raw"),
    _terminal_visibility("rmsnorm", visible=False),
    _terminal_visibility("raw", visible=True),
)

TABLE_14: tuple[Claim, ...] = (
    _fails("rmsnorm", 1),
    _fails("raw", 1),
    _fails("raw", 3),
    _monotone(1),
    _monotone(2),
    _monotone(3),
)

FIGURE_7: tuple[Claim, ...] = (
    _flat("converged", "ce_run@3-ce_run@8", "has converged after three loops: five more improve it"),
    _flat("overshoot", "ce_run@8-ce_run@4", "stays flat beyond its trained loops: a run of twice as many is worse"),
)
