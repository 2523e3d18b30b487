"""Numbers and quantities as they are written in reports."""

from __future__ import annotations

import pytest

from loopverify.claims.quantity import number, quantity


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (891.07, "×", "×891"),
        (39207.4, "L2", "39,207 L2"),
        (0.1157, "nats", "0.116 nats"),
        (37.17, "nats", "37.2 nats"),
        (5.375, "", "5.38"),
        (1.1e9, "", "1.1e+09"),
        (-0.002, "nats", "-0.002 nats"),
        (4.7e-9, "", "4.7e-09"),
        (-0.00041, "nats", "-0.00041 nats"),
        (0.0, "nats", "0 nats"),
        (float("nan"), "", "nan"),
        (float("inf"), "", "inf"),
    ],
)
def test_quantities_in_reports(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_an_error_has_the_decimals_of_its_value() -> None:
    assert number(0.4551, like=9.66) == "0.46"
    assert number(19891.4, like=39207.0) == "19,891"
    assert number(2e7, like=1.0) == "2e+07"
