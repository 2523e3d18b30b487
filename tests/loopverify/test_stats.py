"""Statistics against hand-enumerated cases, scipy and the figures of the papers."""

from __future__ import annotations

import math
import sys
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, mannwhitneyu, permutation_test, rankdata

from loopverify.errors import InputError, MissingDependencyError
from loopverify.stats import (
    bootstrap_interval,
    can_reach,
    cliffs_delta,
    holm,
    mcnemar,
    rank_test,
    seeds_needed,
    smallest_p,
)

INF = math.inf


def with_wins(wins: int, n: int, m: int) -> tuple[list[float], list[float]]:
    """n and m distinct values of which the first side wins `wins` of the n * m pairs."""
    y = [float(j) for j in range(m)]
    above = [m] * (wins // m) + [wins % m] * (wins // m < n)
    above += [0] * (n - len(above))
    return [count - 0.5 + place * 1e-3 for place, count in enumerate(above)], y


def test_two_against_two_by_hand() -> None:
    # The six relabelings of ranks 1..4 have rank sums 3, 4, 5, 5, 6, 7.
    assert rank_test([3, 4], [1, 2]) == 1 / 6
    assert rank_test([2, 4], [1, 3]) == 2 / 6
    assert rank_test([1, 4], [2, 3]) == 4 / 6
    assert rank_test([1, 2], [3, 4]) == 1


def test_ties_by_hand() -> None:
    # Midranks of (2, 2 | 1, 2) are 3, 3, 1, 3: half of the six pairs avoid the 1, and so reach the sum 6.
    assert rank_test([2, 2], [1, 2]) == 3 / 6
    assert rank_test([5, 5, 5], [5, 5, 5]) == 1


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_full_permutation_with_ties(x: list[int], y: list[int]) -> None:
    ranks = rankdata([*x, *y])
    sums = [sum(ranks[list(chosen)]) for chosen in combinations(range(len(ranks)), len(x))]
    expected = sum(s >= sum(ranks[: len(x)]) for s in sums) / len(sums)
    assert rank_test(x, y) == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=18, unique=True), st.data())
def test_scipy_without_ties(values: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(values) - 1))
    x, y = values[:cut], values[cut:]
    assert rank_test(x, y) == pytest.approx(mannwhitneyu(x, y, alternative="greater", method="exact").pvalue, rel=1e-12)


def test_scipy_permutation_test_with_ties() -> None:
    x, y = [1.0, 2.0, 2.0, 5.0], [1.0, 1.0, 2.0]
    exact = permutation_test(
        (x, y), lambda a, b: mannwhitneyu(a, b).statistic, alternative="greater", n_resamples=INF, vectorized=False
    )
    assert rank_test(x, y) == pytest.approx(exact.pvalue, rel=1e-12)


def test_infinite_values_are_ranked() -> None:
    assert rank_test([INF, INF, 3], [1, 2, -INF]) == 1 / 20
    assert rank_test([-INF], [1]) == 1


def test_three_against_three_seeds_cannot_go_below_one_in_twenty() -> None:
    assert rank_test([7, 8, 9], [1, 2, 3]) == smallest_p(3, 3) == 0.05
    assert can_reach(0.05, 3, 3)
    assert not can_reach(0.049, 3, 3)
    assert not can_reach(0.05, 2, 3)
    assert not can_reach(0.05, 1, 1)


def test_seeds_needed() -> None:
    # C(4, 2) = 6, C(6, 3) = 20, C(8, 4) = 70, C(10, 5) = 252
    assert [seeds_needed(alpha) for alpha in (1, 0.05, 0.049, 0.01, 0.005)] == [1, 3, 4, 5, 5]
    with pytest.raises(InputError, match="alpha is 0; expected a number > 0"):
        seeds_needed(0)


def test_sixteen_against_sixteen_seeds() -> None:
    """Study of loop-boundary normalization: two-sided p of 4.0e-6 where Cliff's delta is 0.867, over 16 seeds."""
    x, y = with_wins(239, 16, 16)
    assert cliffs_delta(x, y) == pytest.approx(0.867, abs=5e-4)
    assert 2 * rank_test(x, y) == pytest.approx(4.0e-6, abs=0.05e-6)
    assert smallest_p(16, 16) == pytest.approx(1 / 601_080_390)


def test_six_against_six_seeds() -> None:
    """The same study at matched overshoot: delta = 0.778, two-sided p = 0.026, over 6 seeds."""
    x, y = with_wins(32, 6, 6)
    assert cliffs_delta(x, y) == pytest.approx(0.778, abs=5e-4)
    assert 2 * rank_test(x, y) == pytest.approx(0.026, abs=5e-4)


def test_cliffs_delta_by_hand() -> None:
    assert cliffs_delta([1, 2], [0, 2]) == 0.25  # win, loss, win, tie
    assert cliffs_delta([3, 4], [1, 2]) == 1
    assert cliffs_delta([1], [1]) == 0


@pytest.mark.parametrize("function", [rank_test, cliffs_delta])
def test_sides_that_cannot_be_ranked_are_refused(function: object) -> None:
    with pytest.raises(InputError, match="x is empty; expected at least one value per side"):
        function([], [1.0])
    with pytest.raises(InputError, match=r"y is \[1.0, nan\]; expected numbers, because NaN has no rank"):
        function([1.0], [1.0, math.nan])


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_the_sign_test_on_discordant_pairs(b: int, c: int) -> None:
    expected = binomtest(b, b + c, 0.5).pvalue if b + c else 1.0
    assert mcnemar(b, c) == pytest.approx(expected, rel=1e-12)


def test_mcnemar_by_hand_and_refusal() -> None:
    assert mcnemar(0, 5) == 2 / 32
    assert mcnemar(1, 3) == 10 / 16
    with pytest.raises(InputError, match="counts of discordant pairs are -1 and 2"):
        mcnemar(-1, 2)


def test_holm_by_hand() -> None:
    # Sorted .005, .01, .03, .04 times 4, 3, 2, 1 -> .02, .03, .06, .06 (the last raised to its predecessor).
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()
    with pytest.raises(InputError, match=r"p is 1\.5; expected a probability"):
        holm([1.5])


def test_designs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="n = 0 and m = 3"):
        smallest_p(0, 3)
    with pytest.raises(InputError, match="alpha is 5; expected a probability"):
        can_reach(5, 3, 3)


@pytest.mark.parametrize("method", ["BCa", "percentile"])
def test_bootstrap_covers_the_mean_of_a_normal_sample(method: str) -> None:
    values = [float(v) for v in range(-10, 11)]  # mean 0, standard error 6.2048 / sqrt(21) = 1.354
    low, high = bootstrap_interval(values, method=method, seed=1)
    # Normal theory with the plug-in error s_n / sqrt(n) = 6.0553 / sqrt(21) = 1.3214: +-1.96 of it.
    assert low == pytest.approx(-2.59, abs=0.15)
    assert high == pytest.approx(2.59, abs=0.15)
    assert (low, high) == bootstrap_interval(values, method=method, seed=1)


def test_bootstrap_of_another_statistic_and_of_constants() -> None:
    low, high = bootstrap_interval([1.0, 2.0, 9.0], max, method="percentile", resamples=2000)
    assert (low, high) == (1.0, 9.0)  # P(max = 1) = 1/27 = 0.037 > 0.025 and P(max = 9) = 19/27
    assert bootstrap_interval([4.0, 4.0, 4.0]) == (4.0, 4.0)


def test_bootstrap_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"values are \[1.0\]; expected two or more finite numbers"):
        bootstrap_interval([1.0])
    with pytest.raises(InputError, match="expected two or more finite numbers"):
        bootstrap_interval([1.0, math.inf])
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'loopverify\[stats\]'"):
        bootstrap_interval([1.0, 2.0])
