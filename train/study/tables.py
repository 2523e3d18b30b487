"""The tables of the first paper, with rows and columns in the paper's order."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from loopverify.claims.p1.conditions import (
    DAMPED,
    EXIT_WEIGHTED,
    INTER_LOOP_NORM,
    LATENT,
    PER_LOOP_FINAL_ONLY,
    PER_LOOP_PENALTY,
    PER_LOOP_RAW,
    PER_LOOP_RMSNORM,
    TABLE_2_ROWS,
    TERMINAL_RAW,
    TERMINAL_RMSNORM,
)
from loopverify.claims.template import Condition
from loopverify.errors import unknown
from train.study.layout import Column, Row, Table

__all__ = ["TABLES", "table"]


def table(name: str) -> Table:
    """The table called `name`, such as 'T12' or 't12'.

    Raises:
        InputError: no such table.
    """
    if name.upper() not in TABLES:
        raise unknown("table", name, TABLES)
    return TABLES[name.upper()]


def _rows(*conditions: Condition) -> tuple[Row, ...]:
    return tuple(Row(condition=condition) for condition in conditions)


def _column(heading: str, metric: str, published: str, form: str | None = None) -> Column:
    """A column; `published` is its name in the paper's data, with {k} for the row's loop as in `metric`."""
    return Column(
        heading=heading, metric=metric, published=lambda cells, row: cells[published.format(k=row.loop)], form=form
    )


_CORE = (TERMINAL_RMSNORM, TERMINAL_RAW, PER_LOOP_RMSNORM, PER_LOOP_RAW)
_READOUTS = (PER_LOOP_RMSNORM, PER_LOOP_RAW, PER_LOOP_FINAL_ONLY)
_NORM = "‖H_4‖₂"

_ALL = (
    Table(
        name="T2",
        title="Table 2: size of the final state and perplexity by loss and readout",
        rows=_rows(*TABLE_2_ROWS),
        columns=(_column(_NORM, "norm@4", "norm"), _column("PPL", "ppl@4", "ppl", ".2f")),
    ),
    Table(
        name="T3",
        title="Table 3: radial part of each exit's own gradient",
        rows=_rows(*_READOUTS),
        columns=(
            _column(_NORM, "norm@4", "norm"),
            _column("r_1", "r@1", "r_1"),
            _column("r_K", "r@4", "r_K"),
            _column("g_K (nats)", "g@4", "g_K"),
        ),
    ),
    Table(
        name="T4",
        title="Table 4: later loops held at the scale of the first",
        rows=_rows(*_READOUTS),
        columns=(
            _column("norm ratio", "clamp_norm_ratio", "norm_ratio", ".2f"),
            _column("ΔCE (nats)", "clamp_delta_ce", "delta_ce", "+.4f"),
        ),
    ),
    Table(
        name="T5",
        title="Table 5: perplexity by depth, and loops that halting takes",
        rows=_rows(*_READOUTS, PER_LOOP_PENALTY),
        columns=(
            _column("PPL at K = 1", "ppl@1", "K1", ".2f"),
            _column("PPL at K = 4", "ppl@4", "K4", ".2f"),
            Column(
                heading="ΔPPL",
                metric="ppl@4-ppl@1",
                published=lambda cells, _: float(cells["K4"]) - float(cells["K1"]),
                form="+.2f",
            ),
            _column("loops taken", "halting_loops", "avg_loops", ".2f"),
        ),
    ),
    Table(
        name="T6",
        title="Table 6: the last state rescaled in front of the readout",
        rows=_rows(PER_LOOP_RMSNORM, PER_LOOP_RAW),
        columns=(
            _column("entropy (nats)", "sweep_entropy@1", "entropy"),
            _column("r_K", "r@4", "r_K"),
            _column("CE at α = 0.1", "sweep_ce@0.1", "final_ce_alpha_0.1", ".2f"),
            _column("CE at α = 1", "sweep_ce@1", "final_ce_alpha_1", ".2f"),
            Column(heading="CE at α = 10", metric="sweep_ce@10", form=".2f"),
        ),
        note="the paper's models have a norm between loops, and its entropy is that of the training objective",
    ),
    Table(
        name="T8",
        title="Table 8: quality and speed at equal depth",
        rows=tuple(
            Row(condition=condition, loop=loop)
            for condition in (PER_LOOP_RMSNORM, PER_LOOP_RAW)
            for loop in (4, 3, 2, 1)
        ),
        columns=(
            _column("CE (nats)", "ce@{k}", "ce_K{k}", ".4f"),
            _column("PPL", "ppl@{k}", "ppl_K{k}", ".1f"),
            _column("tokens/s", "timing_tokens_per_s@{k}", "tokens_per_s_K{k}"),
            Column(heading="× RMSNorm", metric="timing_vs_rmsnorm@{k}"),
        ),
        note="tokens/s belong to a machine; the last column is a ratio of interleaved timings on ours",
    ),
    Table(
        name="T10",
        title="Table 10: ‖H_4‖₂ over tokens",
        rows=_rows(*_CORE),
        columns=(
            _column("mean", "norm@4", "mean"),
            _column("median", "norm_median@4", "median"),
            _column("p99", "norm_p99@4", "p99"),
            _column("max", "norm_max@4", "max"),
            _column("std", "norm_std@4", "std"),
        ),
    ),
    Table(
        name="T11",
        title="Table 11: what loss placement and visible scale each do",
        rows=_rows(*_CORE),
        columns=(
            _column("PPL at K = 1", "ppl@1", "ppl_K1"),
            _column("PPL at K = 4", "ppl@4", "ppl_K4"),
            _column("CE gap (nats)", "ce@1-ce@4", "ce_gap", ".2f"),
            _column("r_K", "r@4", "r_K"),
        ),
    ),
    Table(
        name="T12",
        title="Table 12: the residual update in late loops, in rms",
        rows=_rows(PER_LOOP_RAW, PER_LOOP_RMSNORM, TERMINAL_RAW, TERMINAL_RMSNORM),
        columns=(
            _column("a_rad", "a_rad@late", "a_rad", ",.2f"),
            _column("rms(b_perp)", "b_perp@late", "b_perp_rms", ",.2f"),
            _column("rms(b)", "b@late", "b_rms", ",.2f"),
            _column("rms(b)/|a_rad|", "b_over_a@late", "b_rms_over_abs_a_rad", ".2f"),
        ),
    ),
    Table(
        name="T13",
        title="Table 13: halting calibrated to 1 % of perplexity",
        rows=_rows(*_READOUTS, PER_LOOP_PENALTY),
        columns=(
            _column("PPL of 4 loops", "halting_fixed_ppl", "ppl_fixed_K4", ".2f"),
            _column("dynamic PPL", "halting_ppl", "ppl_dynamic", ".2f"),
            _column("loops taken", "halting_loops", "avg_loops", ".2f"),
            _column("speed-up", "halting_speedup", "speedup", ".2f"),
        ),
        note="our speed-up is the ideal one, 4 over the loops taken; the paper's is timed",
    ),
    Table(
        name="T14",
        title="Table 14: cross-entropy by depth under terminal loss, nats per token",
        rows=_rows(TERMINAL_RMSNORM, TERMINAL_RAW),
        columns=tuple(_column(f"K = {k}", f"ce@{k}", f"K{k}", ".2f") for k in (1, 2, 3, 4)),
    ),
    Table(
        name="A16",
        title="Appendix 16: further interventions",
        rows=_rows(EXIT_WEIGHTED, DAMPED, LATENT, INTER_LOOP_NORM),
        columns=(_column(_NORM, "norm@4", "norm"), Column(heading="PPL", metric="ppl@4", form=".2f")),
        note="the paper gives no numbers for latent losses and for a norm between loops",
    ),
)
TABLES: Mapping[str, Table] = MappingProxyType({table.name: table for table in _ALL})
"""Every table that can be reproduced, by name."""
