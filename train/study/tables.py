"""The tables of the first paper, each in its own order, to put ours beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from loopverify.claims import paper
from loopverify.errors import unknown
from train.study.layout import Cell, Column, Row, Table

__all__ = ["TABLES", "table"]


def table(name: str) -> Table:
    """The table called `name`, such as 'T12' or 't12'.

    Raises:
        InputError: no such table.
    """
    if name.upper() not in TABLES:
        raise unknown("table", name, TABLES)
    return TABLES[name.upper()]


def _rows(*names: str) -> tuple[Row, ...]:
    return tuple(Row(condition=_CONDITIONS.get(name, name), name=name) for name in names)


def _column(heading: str, metric: str, *path: str | int, form: str | None = None) -> Column:
    """A column whose cell is found below the row by `path`."""

    def cell(of_size: Any, row: Row) -> Cell:
        found = of_size[row.name]
        for step in path:
            found = found[step]
        return found  # type: ignore[no-any-return]

    return Column(heading=heading, metric=metric, published=cell, form=form)


def _by_row(name: str) -> dict[str, Any]:
    """A table stored by row, then by size, turned round."""
    stored = paper.tables()[name]
    return {
        size: {row: of_row[size] for row, of_row in stored.items() if isinstance(of_row, Mapping) and size in of_row}
        for size in paper.SIZES
    }


_CONDITIONS = {
    "rmsnorm": "per_loop/rmsnorm",
    "raw": "per_loop/raw",
    "final_only": "per_loop/final_only",
    "penalty": "per_loop+penalty/rmsnorm",
    "baseline": "per_loop/rmsnorm",
    "no_readout_norm": "per_loop/raw",
    "exit_weighted": "exit_weighted/rmsnorm",
    "spectral_damping": "terminal/rmsnorm/damped",
    "latent": "per_loop+latent/rmsnorm",
    "inter_loop_norm": "per_loop/rmsnorm/inter_loop_norm",
}
_CORE = ("terminal/rmsnorm", "terminal/raw", "per_loop/rmsnorm", "per_loop/raw")
_READOUTS = ("rmsnorm", "raw", "final_only")
_NORM = "‖H_4‖₂"
_T8_ROWS = tuple(
    Row(condition=_CONDITIONS[name], name=name, loop=loop) for name in ("baseline", "raw") for loop in (4, 3, 2, 1)
)


def _at_depth(place: int) -> Callable[[Any, Row], Cell]:
    return lambda of_size, row: of_size[row.name][f"K{row.loop}"][place]


def _sizes(name: str) -> dict[str, Any]:
    return {size: paper.tables()[name][size] for size in paper.SIZES}


_ALL = (
    Table(
        name="T2",
        title="Table 2: size of the final state and perplexity by loss and readout",
        rows=_rows(*paper.conditions()),
        columns=(_column(_NORM, "norm@4", "norm", 0), _column("PPL", "ppl@4", "ppl", form=".2f")),
        sizes=_sizes("P1.T2_norm_and_ppl"),
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
        sizes=_sizes("P1.T3_radial_gradient"),
    ),
    Table(
        name="T4",
        title="Table 4: later loops held at the scale of the first",
        rows=_rows(*_READOUTS),
        columns=(
            _column("norm ratio", "clamp_norm_ratio", "norm_ratio", form=".2f"),
            _column("ΔCE (nats)", "clamp_delta_ce", "delta_ce", form="+.4f"),
        ),
        sizes=_by_row("P1.T4_radial_clamp"),
    ),
    Table(
        name="T5",
        title="Table 5: perplexity by depth, and loops that halting takes",
        rows=_rows(*_READOUTS, "penalty"),
        columns=(
            _column("PPL at K = 1", "ppl@1", "K1", form=".2f"),
            _column("PPL at K = 4", "ppl@4", "K4", form=".2f"),
            Column(
                heading="ΔPPL",
                metric="ppl@4-ppl@1",
                published=lambda of_size, row: of_size[row.name]["K4"] - of_size[row.name]["K1"],
                form="+.2f",
            ),
            _column("loops taken", "halting_loops", "avg_loops", form=".2f"),
        ),
        sizes=_by_row("P1.T5_variable_depth_ppl"),
    ),
    Table(
        name="T6",
        title="Table 6: the last state rescaled in front of the readout",
        rows=_rows("baseline", "no_readout_norm"),
        columns=(
            _column("entropy (nats)", "sweep_entropy@1", "entropy"),
            _column("r_K", "r@4", "r_K"),
            _column("CE at α = 0.1", "sweep_ce@0.1", "final_ce_alpha_0.1", form=".2f"),
            _column("CE at α = 1", "sweep_ce@1", "final_ce_alpha_1", form=".2f"),
            Column(heading="CE at α = 10", metric="sweep_ce@10", form=".2f"),
        ),
        sizes={"1.4b": paper.tables()["P1.T6_1.4b_diagnostic"]},
        note="the paper's models have a norm between loops, and its entropy is that of the training objective",
    ),
    Table(
        name="T8",
        title="Table 8: quality and speed at equal depth",
        rows=_T8_ROWS,
        columns=(
            Column(heading="CE (nats)", metric="ce@{k}", published=_at_depth(0), form=".4f"),
            Column(heading="PPL", metric="ppl@{k}", published=_at_depth(1), form=".1f"),
            Column(heading="tokens/s", metric="timing_tokens_per_s@{k}", published=_at_depth(2)),
            Column(heading="× RMSNorm", metric="timing_vs_rmsnorm@{k}"),
        ),
        sizes={"1.4b": paper.tables()["P1.T8_fixed_K_throughput_1.4b"]},
        note="tokens/s belong to a machine; the last column is a ratio taken in turns on ours",
    ),
    Table(
        name="T10",
        title="Table 10: ‖H_4‖₂ over tokens",
        rows=_rows(*_CORE),
        columns=tuple(
            _column(heading, metric, place)
            for place, (heading, metric) in enumerate(
                {
                    "mean": "norm@4",
                    "median": "norm_median@4",
                    "p99": "norm_p99@4",
                    "max": "norm_max@4",
                    "std": "norm_std@4",
                }.items()
            )
        ),
        sizes=_sizes("P1.T10_token_norms_20480_tokens"),
    ),
    Table(
        name="T11",
        title="Table 11: what loss placement and visible scale each do",
        rows=_rows(*_CORE),
        columns=(
            _column("PPL at K = 1", "ppl@1", 0),
            _column("PPL at K = 4", "ppl@4", 1),
            _column("CE gap (nats)", "ce@1-ce@4", 2, form=".2f"),
            _column("r_K", "r@4", 3),
        ),
        sizes=_sizes("P1.T11_decomposition"),
    ),
    Table(
        name="T12",
        title="Table 12: the residual update in late loops, in rms",
        rows=_rows("per_loop/raw", "per_loop/rmsnorm", "terminal/raw", "terminal/rmsnorm"),
        columns=(
            _column("a_rad", "a_rad@late", 0, form=",.2f"),
            _column("rms(b_perp)", "b_perp@late", 1, form=",.2f"),
            _column("rms(b)", "b@late", 2, form=",.2f"),
            _column("rms(b)/|a_rad|", "b_over_a@late", 3, form=".2f"),
        ),
        sizes=_sizes("P1.T12_residual_update_loops_ge_10_of_30"),
    ),
    Table(
        name="T13",
        title="Table 13: halting calibrated to 1 % of perplexity",
        rows=_rows(*_READOUTS, "penalty"),
        columns=(
            _column("PPL of 4 loops", "halting_fixed_ppl", 0, form=".2f"),
            _column("dynamic PPL", "halting_ppl", 1, form=".2f"),
            _column("loops taken", "halting_loops", 2, form=".2f"),
            _column("speed-up", "halting_speedup", 3, form=".2f"),
        ),
        sizes=_by_row("P1.T13_dynamic_halting"),
        note="our speed-up is the ideal one, 4 over the loops taken; the paper's is timed",
    ),
    Table(
        name="T14",
        title="Table 14: cross-entropy by depth under terminal loss, nats a token",
        rows=_rows("terminal/rmsnorm", "terminal/raw"),
        columns=tuple(_column(f"K = {k}", f"ce@{k}", k - 1, form=".2f") for k in (1, 2, 3, 4)),
        sizes={"129m": paper.tables()["P1.T14_terminal_variable_depth_ce_129m"]},
    ),
    Table(
        name="A16",
        title="Appendix 16: further interventions",
        rows=_rows("exit_weighted", "spectral_damping", "latent", "inter_loop_norm"),
        columns=(_column(_NORM, "norm@4", 0), Column(heading="PPL", metric="ppl@4", form=".2f")),
        sizes=_by_row("P1.A16_mitigations_norm"),
        note="the paper gives no numbers for latent losses and for a norm between loops",
    ),
)
TABLES: Mapping[str, Table] = MappingProxyType({table.name: table for table in _ALL})
"""Every table that can be reproduced, by name."""
