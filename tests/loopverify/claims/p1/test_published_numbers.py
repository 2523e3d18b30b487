"""The published numbers of every claim are the paper's, from the right cells."""

from __future__ import annotations

import math

import pytest

from loopverify.claims import CLAIMS, claims_for
from loopverify.claims.p1 import SOURCE, published
from loopverify.claims.p1.conditions import PER_LOOP_RAW, TERMINAL_PENALTY, TERMINAL_RAW
from loopverify.claims.p1.table3 import float32_floor
from loopverify.claims.template import by_size

log = math.log
# Typed from the tables of Sharma & Vu 2026; ratios, differences and logarithms are taken here. 44M first, then 129M;
# a single number is that of the one model the table is about. 2**-23 is the machine epsilon of float32.
FLOORS = (2 * 2**-23 / math.sqrt(512), 2 * 2**-23 / math.sqrt(768))
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "P1.T2": {
        "drift.per_loop.vs_raw": (39207 / 44, 56051 / 77),
        "drift.per_loop.vs_final_only": (39207 / 57, 56051 / 83),
        "drift.per_loop.vs_penalty": (39207 / 17, 56051 / 22),
        "drift.terminal.vs_raw": (5674 / 15, 5997 / 24),
        "drift.terminal.vs_penalty": (5674 / 21, 5997 / 27),
        "thousands.per_loop.rmsnorm": (39207, 56051),
        "thousands.terminal.rmsnorm": (5674, 5997),
        "tens.per_loop.raw": (44, 77),
        "tens.per_loop.final_only": (57, 83),
        "tens.per_loop.penalty": (17, 22),
        "tens.terminal.raw": (15, 24),
        "tens.terminal.penalty": (21, 27),
        "perplexity.vs_raw": (log(6.04 / 5.38), log(5.35 / 4.92)),
        "perplexity.vs_final_only": (log(6.04 / 5.42), log(5.35 / 4.93)),
        "perplexity.vs_penalty": (log(6.04 / 5.44), log(5.35 / 4.91)),
        "exits.fail.terminal.rmsnorm": (19.21, 3.98),
        "exits.fail.terminal.raw": (37.17, 27.63),
        "exits.work.per_loop.rmsnorm": (0.00, 0.00),
        "exits.work.per_loop.raw": (0.04, 0.03),
        "exits.work.per_loop.final_only": (log(5.20 / 5.00), log(4.70 / 4.55)),
        "exits.work.per_loop.penalty": (log(5.22 / 5.00), log(4.67 / 4.53)),
        "exits.first.rmsnorm": (log(1.1e9 / 5.58), log(250 / 4.98)),
        "exits.first.raw": (log(6.9e16 / 5.14), log(4.7e12 / 4.68)),
    },
    "P1.T3": {
        "radial.rmsnorm.first": (5.0e-9 / FLOORS[0], 8.8e-9 / FLOORS[1]),
        "radial.rmsnorm.last": (4.7e-9 / FLOORS[0], 7.5e-9 / FLOORS[1]),
        "radial.raw.first": (6.3e-2, 6.0e-2),
        "radial.raw.last": (7.2e-2, 4.7e-2),
        "radial.final_only.first": (6.4e-2, 5.9e-2),
        "radial.final_only.last": (1.2e-8 / FLOORS[0], 9.5e-9 / FLOORS[1]),
        "radial.raw.vs_rmsnorm": (7.2e-2 / 4.7e-9, 4.7e-2 / 7.5e-9),
    },
    "P1.T4": {
        "clamp.rmsnorm.growth": (0.40, 0.55),
        "clamp.rmsnorm.cheap": (0.0004, 0.0005),
        "clamp.raw.growth": (0.53, 0.46),
        "clamp.raw.cheap": (0.0055, 0.0015),
        "clamp.final_only.growth": (0.41, 0.42),
        "clamp.final_only.cheap": (0.0035, 0.0027),
    },
    "P1.T5": {
        "invariant.rmsnorm": (log(5.58 / 5.59), log(4.98 / 4.97)),
        "depth.raw": (log(5.14 / 4.94), log(4.68 / 4.55)),
        "depth.final_only": (log(5.20 / 5.00), log(4.70 / 4.55)),
        "depth.penalty": (log(5.22 / 5.00), log(4.67 / 4.53)),
        "depth.raw.vs_rmsnorm": (log(5.14 / 4.94 * 5.59 / 5.58), log(4.68 / 4.55 * 4.97 / 4.98)),
        "depth.final_only.vs_rmsnorm": (log(5.20 / 5.00 * 5.59 / 5.58), log(4.70 / 4.55 * 4.97 / 4.98)),
        "depth.penalty.vs_rmsnorm": (log(5.22 / 5.00 * 5.59 / 5.58), log(4.67 / 4.53 * 4.97 / 4.98)),
        "first_exit.vs_raw": (log(5.58 / 5.14), log(4.98 / 4.68)),
        "first_exit.vs_final_only": (log(5.58 / 5.20), log(4.98 / 4.70)),
        "first_exit.vs_penalty": (log(5.58 / 5.22), log(4.98 / 4.67)),
    },
    "P1.T6": {
        "sweep.rmsnorm.flat": (0.0,),
        "sweep.raw.sharp": (98.36 - 11.02,),
        "radial.raw.vs_rmsnorm": (6.80e-2 / 3.96e-5,),
    },
    "P1.T7": {
        "nll": (0.056,),
        "margin": (0.040,),
        "probability": (0.0047,),
        "accuracy.raw": (-0.0016,),
        "accuracy.rmsnorm": (0.0016,),
    },
    "P1.T8": {
        "quality.K1": (6.7892 - 6.7719,),
        "quality.K2": (6.7839 - 6.7678,),
        "quality.K3": (6.7839 - 6.7678,),
        "quality.K4": (6.7839 - 6.7678,),
        "speed.raw.no_slower": (11817 / 11746,),
        "speed.raw.no_faster": (11817 / 11746,),
    },
    "P1.T10": {
        "uniform.terminal.p99": (8768 / 5493, 10636 / 5805),
        "heavy.per_loop.p99": (342685 / 2986, 124507 / 2132),
        "heavy.per_loop.mean": (63347 / 2986, 26426 / 2132),
        "tight.terminal.raw": (44, 69),
        "tight.per_loop.raw": (150, 259),
        "drift.terminal.median": (5493 / 6, 5805 / 9),
        "drift.terminal.p99": (8768 / 44, 10636 / 69),
        "drift.per_loop.median": (2986 / 8, 2132 / 10),
        "drift.per_loop.p99": (342685 / 150, 124507 / 259),
    },
    "P1.T11": {
        "exits.rmsnorm": (19.21 - 0.00, 3.98 - 0.00),
        "exits.raw": (37.17 - 0.04, 27.63 - 0.03),
        "radial.terminal.rmsnorm": (4.1e-9 / FLOORS[0], 6.9e-9 / FLOORS[1]),
        "radial.terminal.raw": (6.8e-2, 5.6e-2),
    },
    "P1.T12": {
        "size.per_loop": (258.27 / 0.28, 20.41 / 0.51),
        "size.terminal": (210.88 / 0.07,),
        "radial.per_loop.raw": (1.01, 1.01),
        "radial.per_loop.rmsnorm": (1.00, 1.46),
        "radial.terminal.rmsnorm": (1.00,),
        "outward.per_loop.rmsnorm": (257.81, 13.99),
        "growth.per_loop.rmsnorm": (0.03,),
        "turning.per_loop.rmsnorm": (),
    },
    "P1.T13": {
        "loops.rmsnorm": (1.00, 1.00),
        "loops.raw.vs_rmsnorm": (2.16 - 1.00, 1.76 - 1.00),
        "loops.final_only.vs_rmsnorm": (1.78 - 1.00, 1.88 - 1.00),
        "loops.penalty.vs_rmsnorm": (2.60 - 1.00, 2.56 - 1.00),
        "budget.rmsnorm": (6.01 / 6.01, 5.34 / 5.32),
        "budget.raw": (5.34 / 5.29, 4.91 / 4.86),
        "budget.final_only": (5.41 / 5.37, 4.90 / 4.85),
        "budget.penalty": (5.41 / 5.36, 4.90 / 4.85),
    },
    "P1.T14": {
        "fails.rmsnorm.exit_1": (5.52 - 1.54,),
        "fails.raw.exit_1": (27.6 - 1.55,),
        "fails.raw.exit_3": (13.8 - 1.55,),
        "monotone.rmsnorm.exit_2": (5.52 - 4.80,),
        "monotone.rmsnorm.exit_3": (4.80 - 3.18,),
        "monotone.rmsnorm.exit_4": (3.18 - 1.54,),
    },
    "P1.A16": {
        "exit_weighted.vs_raw": (6470 / 44, 4710 / 77),
        "exit_weighted.thousands": (6470, 4710),
        "damping.smaller": (5674 / 2432, 5997 / 2973),
        "damping.not_enough": (2432 / 15, 2973 / 24),
        "latent.tens": (),
        "inter_loop_norm.capped": (),
    },
    "P1.F5": {"sweep.with_norm": (), "sweep.without_norm": ()},
    "P1.F7": {"converged": (), "overshoot": ()},
}


@pytest.mark.parametrize("table", PUBLISHED)
def test_published_numbers_as_printed_in_the_paper(table: str) -> None:
    expected = {f"{table}.{name}": pytest.approx(numbers, rel=1e-9) for name, numbers in PUBLISHED[table].items()}
    assert {claim.id: tuple(claim.published.values()) for claim in claims_for([table])} == expected


def test_every_table_of_the_paper_is_listed_here() -> None:
    assert {claim.table for claim in CLAIMS.values() if claim.study == "P1"} == PUBLISHED.keys()


def test_only_table_7_takes_more_than_models_trained_on_text() -> None:
    assert {claim.table for claim in CLAIMS.values() if claim.study == "P1" and claim.needs} == {"P1.T7"}
    assert all(claim.needs for claim in claims_for(["P1.T7"]))


def test_the_rounding_floor_is_that_of_the_theory() -> None:
    torch = pytest.importorskip("torch")
    from loopverify.theory.visibility import floor

    assert float32_floor("44m") == pytest.approx(floor(torch.float32, 512), rel=1e-12)
    assert float32_floor("129m") == pytest.approx(floor(torch.float32, 768), rel=1e-12)


def test_entries_of_tables_by_name() -> None:
    assert published.entry("T3", "44m", PER_LOOP_RAW, "r_K") == 7.2e-2
    assert published.entry("T10", "129m", PER_LOOP_RAW, "max") == 808
    assert published.entry("T2", "129m", TERMINAL_PENALTY, "ppl") == 4.81
    assert published.entry("T14", "129m", TERMINAL_RAW, "K1") == 27.6  # printed '>27.6'
    assert published.entry("T7", "1.4b", "candidate_nll", "change") == -0.056
    with pytest.raises(KeyError, match="T12 of 129m has none of the rows"):
        published.entry("T12", "129m", TERMINAL_RAW, "a_rad")
    with pytest.raises(KeyError, match="T2 of 44m prints no norm_std"):
        published.entry("T2", "44m", TERMINAL_PENALTY, "norm_std")


def test_published_tables_come_with_their_source() -> None:
    assert "arXiv 2606.24898" in SOURCE
    assert dict(by_size(lambda size: {"44m": 1.0}[size])) == {"44m": 1.0}
