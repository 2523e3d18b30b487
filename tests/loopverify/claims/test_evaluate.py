"""The rules by which runs become a verdict, on claims made for the purpose."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from loopverify.claims import CLAIMS, Bound, Claim, Comparison, evaluate
from loopverify.errors import InputError
from tests.loopverify.claims.made_up import run, runs

RATIO = Claim(
    id="P0.T0.ratio",
    sentence="Left is ten times right.",
    source="nowhere",
    metric="norm@4",
    form=Comparison(left="left", right="right", by="ratio", limit=10),
    published={"44m": 891.07, "129m": 39207.0},
)
DIFFERENCE = Claim(
    id="P0.T0.difference",
    sentence="Left exceeds right.",
    source="nowhere",
    metric="ce@4",
    form=Comparison(left="left", right="right", by="difference", limit=0.5),
)
BOUND = Claim(
    id="P0.T0.bound",
    sentence="Exits work.",
    source="nowhere",
    metric="ce@1-ce@4",
    form=Bound(condition="left", side="at most", limit=0.1),
)


def test_superiority_by_a_margin_is_a_rank_test_against_the_shifted_side() -> None:
    left, right = [31.0, 25.0, 18.0, 40.0], [1.0, 2.0, 3.5]
    evidence = evaluate(RATIO, runs(RATIO, left, right))
    bars = [10.0, 20.0, 35.0]
    assert evidence.p_for == pytest.approx(mannwhitneyu(left, bars, alternative="greater", method="exact").pvalue)
    assert evidence.p_against == pytest.approx(mannwhitneyu(left, bars, alternative="less", method="exact").pvalue)
    assert evidence.cliffs_delta == 1  # at no margin, left is above right throughout
    assert evidence.verdict == "inconclusive"


def test_three_separated_seeds_hold_at_one_in_twenty() -> None:
    evidence = evaluate(DIFFERENCE, runs(DIFFERENCE, [2.6, 2.7, 2.8], [2.0, 2.05, 1.9]))
    assert (evidence.verdict, evidence.p_for, evidence.p_against) == ("held", 0.05, 1.0)
    assert evidence.basis == (
        "exact rank test against the least effect, n = 3 and 3: p = 0.05 for, p = 1 against, alpha = 0.05"
    )
    assert evidence.n == "3 vs 3"


def test_an_effect_short_of_the_least_one_contradicts() -> None:
    evidence = evaluate(DIFFERENCE, runs(DIFFERENCE, [2.3, 2.4, 2.45], [2.0, 2.0, 2.0]))
    assert (evidence.verdict, evidence.p_for, evidence.p_against) == ("contradicted", 1.0, 0.05)


def test_the_effect_is_summarized_over_all_pairs() -> None:
    evidence = evaluate(RATIO, runs(RATIO, [100.0, 200.0], [1.0, 4.0]))
    assert evidence.measured is not None  # 25, 50, 100, 200
    assert (evidence.measured.low, evidence.measured.median, evidence.measured.high) == (25, 75, 200)
    assert evidence.margin == 65
    assert evidence.measured_text == "×75 (25…200)"
    assert evidence.required_text == "≥ ×10"
    assert evidence.published_text == "×891 (44M), ×39,207 (129M)"
    assert evaluate(DIFFERENCE, []).published_text == "–"
    assert evaluate(CLAIMS["P1.T2.perplexity.vs_raw"], []).published_text == "0.116 (44M), 0.084 (129M) nats"


@pytest.mark.parametrize(
    ("left", "right", "verdict", "meeting"),
    [
        ([100], [10, 9], "held", "2 of 2"),
        ([99], [10, 20], "contradicted", "0 of 2"),
        ([100, 99], [10], "inconclusive", "1 of 2"),
    ],
)
def test_few_seeds_decide_by_every_pair(left: list[float], right: list[float], verdict: str, meeting: str) -> None:
    evidence = evaluate(RATIO, runs(RATIO, left, right))
    assert evidence.verdict == verdict
    assert evidence.p_for is None
    assert evidence.p_against is None
    assert evidence.basis == (
        f"effect only, n = {len(left)} and {len(right)}: no test can reach alpha = 0.05; use --seeds 3. "
        f"Pairs of seeds that meet the least effect: {meeting}"
    )


def test_the_advice_on_seeds_follows_alpha() -> None:
    strict = Claim(id="a.b", sentence="", source="", metric="ce@4", form=DIFFERENCE.form, alpha=0.01)
    assert "use --seeds 5" in evaluate(strict, runs(strict, [3] * 4, [1] * 4)).basis  # C(8, 4) = 70, C(10, 5) = 252


def test_sides_of_different_size_are_fine() -> None:
    evidence = evaluate(RATIO, runs(RATIO, [100] * 5, [1] * 2))
    assert (evidence.verdict, evidence.n) == ("held", "5 vs 2")
    assert evidence.p_for == pytest.approx(1 / 21)  # C(7, 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_diverged_run_meets_no_effect_and_is_named(bad: float, side: str) -> None:
    left, right = [100.0, 110.0, 120.0], [1.0, 2.0, 3.0]
    (left if side == "left" else right)[1] = bad
    evidence = evaluate(RATIO, runs(RATIO, left, right))
    assert evidence.verdict == "inconclusive"
    assert evidence.diverged == (f"{side} seed 1",)
    assert evidence.basis.endswith(f"; diverged, so counted as not meeting the claim: {side} seed 1")
    assert evidence.measured is not None
    assert math.isfinite(evidence.measured.high)
    single = evaluate(RATIO, runs(RATIO, left[1:2], right[1:2]))
    assert single.verdict == "contradicted"
    assert single.measured is None
    assert single.margin is None
    assert single.measured_text == "–"


def test_a_diverged_run_lies_in_no_bound() -> None:
    assert evaluate(BOUND, runs(BOUND, [0.05, math.nan, 0.02])).verdict == "inconclusive"
    alone = evaluate(BOUND, runs(BOUND, [-math.inf]))
    assert (alone.verdict, alone.diverged) == ("contradicted", ("left seed 0",))


def test_a_bound_needs_every_seed() -> None:
    held = evaluate(BOUND, runs(BOUND, [0.05, -0.2, 0.0625]))
    assert (held.verdict, held.basis, held.n) == ("held", "seeds within the bound: 3 of 3", "3")
    assert held.measured_text == "0.050 nats (-0.200…0.062)"
    assert evaluate(BOUND, runs(BOUND, [0.05, 0.2])).basis == "seeds within the bound: 1 of 2"


def test_a_ratio_to_nothing_has_no_finite_effect() -> None:
    evidence = evaluate(RATIO, runs(RATIO, [1.0], [0.0]))
    assert (evidence.verdict, evidence.measured) == ("held", None)


def test_a_missing_metric_is_named() -> None:
    study = [*runs(RATIO, [100.0]), run("left", 1, {"ce@4": 2.0})]
    evidence = evaluate(RATIO, study)
    assert (evidence.verdict, evidence.basis) == ("not run", "missing: norm@4 of left seed 1")
    assert evidence.diverged == ()
    assert evidence.n == "2 vs 1"


def test_runs_that_must_not_be_compared_are_refused() -> None:
    with pytest.raises(InputError, match="runs of the presets small, tiny; expected one preset"):
        evaluate(RATIO, [run("left", 0, {}, preset="tiny"), run("right", 0, {}, preset="small")])
    with pytest.raises(InputError, match=r"two runs of left seed 0 .*a seed counts once: pass one of them"):
        evaluate(RATIO, [run("left", 0, {"norm@4": 1.0}), run("left", 0, {"norm@4": 2.0})])


def test_evidence_reads_as_an_assertion_message_and_as_json() -> None:
    evidence = evaluate(RATIO, runs(RATIO, [5.0], [1.0]))
    assert str(evidence) == (
        "contradicted: Left is ten times right. [P0.T0.ratio; nowhere]\n"
        "  measured ‖H_4‖₂: ×5, required ≥ ×10; paper: ×891 (44M), ×39,207 (129M); n = 1 vs 1\n"
        "  effect only, n = 1 and 1: no test can reach alpha = 0.05; use --seeds 3. "
        "Pairs of seeds that meet the least effect: 0 of 1"
    )
    record = evidence.to_dict()
    assert record["measured"] == {"median": 5.0, "low": 5.0, "high": 5.0}
    assert record["seeds"] == {"left": [0], "right": [0]}
    assert (record["verdict"], record["n"], record["margin"], record["unit"]) == ("contradicted", "1 vs 1", -5.0, "×")


values = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=5)


@given(values, values, st.randoms())
def test_the_order_of_runs_does_not_matter(left: list[float], right: list[float], random: object) -> None:
    study = runs(RATIO, left, right)
    shuffled = list(study)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert evaluate(RATIO, shuffled) == evaluate(RATIO, study)


@given(values, values)
def test_a_larger_effect_never_speaks_against(left: list[float], right: list[float]) -> None:
    order = ["contradicted", "inconclusive", "held"]
    before = evaluate(RATIO, runs(RATIO, left, right)).verdict
    after = evaluate(RATIO, runs(RATIO, [2 * value for value in left], right)).verdict
    assert order.index(after) >= order.index(before)
