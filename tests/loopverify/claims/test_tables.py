"""The claims beside Table 2: published numbers as the paper prints them, and limits that nobody may move."""

from __future__ import annotations

import math

import pytest

from loopverify.claims import CLAIMS, HOPS, claims_for, paper
from loopverify.claims.table3 import float32_floor
from loopverify.claims.words import WORDS

log = math.log
# Typed from the tables of Sharma & Vu 2026; ratios, differences and logarithms are taken here. 44M first, then 129M;
# a single number is that of the one model the table is about. 2**-23 is the machine epsilon of float32.
FLOORS = (2 * 2**-23 / math.sqrt(512), 2 * 2**-23 / math.sqrt(768))
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
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
    # On a task of our own, for which the paper has no numbers.
    "P1.depth_use": {
        "invariant.rmsnorm": (),
        "uses.raw": (),
        "uses.penalty": (),
        "uses.final_only": (),
        "uses.inter_loop_norm": (),
        "more.raw.vs_rmsnorm": (),
        "more.penalty.vs_rmsnorm": (),
        "more.final_only.vs_rmsnorm": (),
        "more.inter_loop_norm.vs_rmsnorm": (),
        "geometry.raw.vs_penalty": (),
        "geometry.raw.vs_inter_loop_norm": (),
        "equal_exit.raw.vs_rmsnorm": (),
        "equal_exit.penalty.vs_rmsnorm": (),
        "speed.rmsnorm_faster": (),
        "speed.raw_slower.vs_rmsnorm": (),
        "scale.rmsnorm.vs_raw": (),
        "scale.rmsnorm.vs_penalty": (),
    },
}


@pytest.mark.parametrize("table", PUBLISHED)
def test_published_numbers_as_printed_in_the_paper(table: str) -> None:
    expected = {f"{table}.{name}": pytest.approx(numbers, rel=1e-9) for name, numbers in PUBLISHED[table].items()}
    assert {claim.id: tuple(claim.published.values()) for claim in claims_for([table])} == expected


def test_every_table_is_listed_here_or_is_table_2() -> None:
    assert {claim.table for claim in CLAIMS.values()} == {"P1.T2", *PUBLISHED}


# (metric, relation, limit, unit) of the claims of one kind. A change here is a change of the claims: it needs a new
# claim, not a new number.
LIMITS: dict[str, set[tuple[str, str, float, str]]] = {
    "P1.T3.radial": {
        ("r_over_floor@1", "≤", 10, "×"),
        ("r_over_floor@4", "≤", 10, "×"),
        ("r@1", "≥", 1e-3, ""),
        ("r@4", "≥", 1e-3, ""),
        ("r@4", "≥", 1000, "×"),
    },
    "P1.T4.clamp": {("clamp_norm_ratio", "≤", 0.8, "×"), ("clamp_abs_delta_ce", "≤", 0.02, "nats")},
    "P1.T5.invariant": {("ce@1-ce@4", "≤", 0.01, "nats")},
    "P1.T5.depth": {("ce@1-ce@4", "≥", 0.01, "nats")},
    "P1.T5.first_exit": {("ce@1", "≥", 0.02, "nats")},
    "P1.T6.sweep": {("sweep_span", "≤", 0.01, "nats"), ("sweep_span", "≥", 0.1, "nats")},
    "P1.T6.radial": {("r@4", "≥", 100, "×")},
    "P1.T7.nll": {("choice_nll", "≥", 0.01, "nats")},
    "P1.T7.margin": {("choice_margin", "≥", 0.01, "nats")},
    "P1.T7.probability": {("choice_gold_probability", "≥", 0.001, "")},
    "P1.T7.accuracy": {("choice_accuracy", "≥", -0.01, "")},
    "P1.T8.quality": {(f"ce@{k}", "≥", 0.005, "nats") for k in (1, 2, 3, 4)},
    "P1.T8.speed": {("timing_vs_rmsnorm@4", "≥", 0.9, "×"), ("timing_vs_rmsnorm@4", "≤", 1.1, "×")},
    "P1.T10.uniform": {("norm_p99@4/norm_median@4", "≤", 2, "×")},
    "P1.T10.heavy": {("norm_p99@4/norm_median@4", "≥", 10, "×"), ("norm@4/norm_median@4", "≥", 2, "×")},
    "P1.T10.tight": {("norm_p99@4", "≤", 1000, "L2")},
    "P1.T10.drift": {("norm_median@4", "≥", 30, "×"), ("norm_p99@4", "≥", 30, "×")},
    "P1.T11.exits": {("ce@1-ce@4", "≥", 0.3, "nats")},
    "P1.T11.radial": {("r_over_floor@4", "≤", 10, "×"), ("r@4", "≥", 1e-3, "")},
    "P1.T12.size": {("b@late", "≥", 30, "×")},
    "P1.T12.radial": {("b_over_a@late", "≤", 1.5, "×")},
    "P1.T12.outward": {("a_rad@late", "≥", 1, "rms")},
    "P1.T12.growth": {("growth_gap@late", "≤", 0.05, "")},
    "P1.T12.turning": {("step_slope_gap@late", "≤", 0.25, "")},
    "P1.T13.loops": {("halting_loops", "≤", 1.1, ""), ("halting_loops", "≥", 0.3, "")},
    "P1.T13.budget": {("halting_ppl_ratio", "≤", 1.02, "×")},
    "P1.T14.fails": {("ce@1-ce@4", "≥", 1, "nats"), ("ce@3-ce@4", "≥", 1, "nats")},
    "P1.T14.monotone": {(f"ce@{k}-ce@{k + 1}", "≥", 0, "nats") for k in (1, 2, 3)},
    "P1.A16.exit_weighted": {("norm@4", "≥", 30, "×"), ("norm@4", "≥", 1000, "L2")},
    "P1.A16.damping": {("norm@4", "≥", 1.2, "×"), ("norm@4", "≥", 10, "×")},
    "P1.A16.latent": {("norm@4", "≤", 100, "L2")},
    "P1.A16.inter_loop_norm": {("rms@4", "≤", 10, "rms")},
    "P1.F5.sweep": {("sweep_span", "≤", 0.01, "nats"), ("bare_sweep_span", "≥", 0.1, "nats")},
    "P1.F7.converged": {("ce_run@3-ce_run@8", "≤", 0.05, "nats")},
    "P1.F7.overshoot": {("ce_run@8-ce_run@4", "≤", 0.05, "nats")},
    "P1.depth_use.invariant": {("ce@1-ce@4", "≤", 0.05, "nats")},
    "P1.depth_use.uses": {("ce@1-ce@4", "≥", 0.1, "nats")},
    "P1.depth_use.more": {("ce@1-ce@4", "≥", 0.1, "nats")},
    "P1.depth_use.geometry": {("ce@1-ce@4", "≥", 0.1, "nats")},
    "P1.depth_use.equal_exit": {("ce_matched@1-ce_matched@4", "≥", 0.05, "nats")},
    "P1.depth_use.speed": {("ce@1-ce@4", "≤", 0.05, "nats"), ("ce@1-ce@4", "≥", 0.1, "nats")},
    "P1.depth_use.scale": {("norm@4", "≥", 3, "×")},
}


def test_limits_are_frozen() -> None:
    found: dict[str, set[tuple[str, str, float, str]]] = {}
    for claim in claims_for(list(PUBLISHED)):
        kind = ".".join(claim.id.split(".")[:3])
        found.setdefault(kind, set()).add((claim.metric, claim.form.relation, claim.form.limit, claim.unit))
    assert found == LIMITS


def test_every_condition_is_called_something() -> None:
    assert {condition for claim in CLAIMS.values() for condition in claim.conditions} == {*WORDS, *HOPS}


def test_only_table_7_takes_more_than_trained_models() -> None:
    assert {claim.table for claim in CLAIMS.values() if claim.needs} == {"P1.T7"}
    assert all(claim.needs for claim in claims_for(["P1.T7"]))


def test_the_rounding_floor_is_that_of_the_theory() -> None:
    torch = pytest.importorskip("torch")
    from loopverify.theory.visibility import floor

    assert float32_floor("44m") == pytest.approx(floor(torch.float32, 512), rel=1e-12)
    assert float32_floor("129m") == pytest.approx(floor(torch.float32, 768), rel=1e-12)


def test_entries_of_tables_by_name() -> None:
    assert paper.entry("P1.T3_radial_gradient", "44m", "raw", "r_K") == 7.2e-2
    assert paper.entry("P1.T10_token_norms_20480_tokens", "129m", "per_loop/raw", "max") == 808
    with pytest.raises(KeyError):
        paper.entry("P1.T12_residual_update_loops_ge_10_of_30", "129m", "terminal/raw", "a_rad")
