"""The oracle against numbers known to many digits, and its independence of everything it judges."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mpmath import mp, mpf

from loopverify.theory import oracle

SOURCE = Path(oracle.__file__)


def test_imports_nothing_but_mpmath_and_the_standard_library() -> None:
    allowed = {"__future__", "collections", "contextlib", "functools", "itertools", "mpmath", "typing"}
    imported: set[str] = set()
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module).split(".")[0])
    assert imported <= allowed


def test_works_at_fifty_digits_whatever_the_callers_precision() -> None:
    with mp.workdps(15):
        root = oracle.rms([1, 2])
    with oracle.precision():
        assert mp.dps == oracle.DIGITS == 50
        assert abs(root - mp.sqrt(mpf(5) / 2)) <= mpf("1e-49")


def test_floats_are_taken_exactly() -> None:
    # 0.1 is 3602879701896397/2⁵⁵ in binary.
    with oracle.precision():
        assert oracle.vector([0.1])[0] == mpf(3602879701896397) / mpf(2) ** 55


def test_definitions_in_closed_form() -> None:
    with oracle.precision():
        close = mpf("1e-48")
        s, u = oracle.split([3, 4])
        assert abs(s - 5 / mp.sqrt(2)) <= close
        assert abs(u[0] - mpf("0.6") * mp.sqrt(2)) <= close
        assert oracle.rms_norm([3, 4], None, 12.5) == [mpf("0.6"), mpf("0.8")]
        assert oracle.layer_norm([1, 3], [2, 2], [1, 0]) == [-1, 2]
        assert oracle.clamped_l2([3, 4], 10) == [mpf("0.3"), mpf("0.4")]
        assert abs(oracle.dynamic_tanh([mp.log(2)], 1, [5])[0] - 3) <= close
        assert oracle.tapered([1, -1], mpf("0.5"), None, 0, [3, 3]) == [2, -2]
        assert oracle.softmax([0, mp.log(3)])[0] == mpf("0.25")
        assert abs(oracle.cross_entropy([0, mp.log(3)], 0) - mp.log(4)) <= close
        assert abs(oracle.softcap([mp.log(2)], 1)[0] - mpf("0.6")) <= close
        assert oracle.norm_penalty([3, 4], 4, 5, 2) == 5
        assert oracle.sigma([1, 0], [0, 0], 1) == mpf("0.5")
        assert abs(oracle.epsilon_shift(1, 3) - mpf("0.5")) <= close


def test_derivatives_to_thirty_digits() -> None:
    with oracle.precision():
        close = mpf("1e-30")
        # Σ H³ is homogeneous of degree three; its derivative along (1, 1) is 3 ΣH².
        cubes = lambda H: sum(h**3 for h in H)  # noqa: E731
        assert abs(oracle.radial_signal(cubes, [2, 3]) - 3 * 35) <= close
        assert abs(oracle.derivative_along(cubes, [2, 3], [1, 1]) - 39) <= close
        # p = (1/4, 3/4): Var of the rates (2, −1) is 3/16·9.
        found = oracle.fisher_visibility(oracle.vector, [0, mp.log(3)], [2, -1])
        assert abs(found - mpf(27) / 16) <= close


def test_recurrences_in_closed_form() -> None:
    """x -> 2x + 1 in one channel: ratio (2α + 1)/α; log x after two steps, log(4x + 3), moves by 4x/(4x + 3)."""
    with oracle.precision():
        step = lambda H: [2 * h + 1 for h in H]  # noqa: E731
        assert oracle.carry_ratio(step, [1], 8) == mpf(17) / 8
        found = oracle.future_signal(step, lambda H: mp.log(H[0]), [mpf(3)], 2)
        assert abs(found - mpf(12) / 15) <= mpf("1e-30")


def test_the_remainders_of_a_right_triangle() -> None:
    """s = 4, b = 3 across (rms): scale 5, so ρ = 1; radial part 4/5 − 1, turning part 3/5 − 3/4."""
    with oracle.precision():
        rho = oracle.scale_remainder(4, [1, 1], [3, -3])
        radial, turning = oracle.direction_remainder(4, [1, 1], [3, -3])
        assert abs(rho - 1) <= mpf("1e-48")
        assert abs(radial + mpf("0.2")) <= mpf("1e-48")
        assert abs(turning - mpf("0.15")) <= mpf("1e-48")
        growth, a, remainder = oracle.norm_ledger([[4, 4], [7, 1]])
        assert (growth, a) == (1, [0])
        assert abs(remainder[0] - 1) <= mpf("1e-48")


def test_a_raised_precision_is_kept() -> None:
    """mpmath's own differentiation works at more than 50 digits; the oracle must not cut it back."""
    with mp.workdps(120):
        assert abs(oracle.rms([1, 2]) - mp.sqrt(mpf(5) / 2)) <= mpf("1e-118")


def test_says_how_to_install_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mpmath", None)
    with pytest.raises(ImportError, match=r"oracle needs mpmath; install it with: pip install 'loopverify\[oracle\]'"):
        exec(compile(SOURCE.read_text(encoding="utf-8"), str(SOURCE), "exec"), {"__name__": "oracle"})
