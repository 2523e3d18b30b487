"""Arguments of the probes looked at before work begins, so that a wrong one ends in words and not deep in torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real

from loopverify.errors import InputError

__all__ = ["check_count", "check_kind", "check_number"]


def check_count(
    name: str, value: object, expected: str = "an integer >= 1", *, least: int = 1, most: float = math.inf
) -> None:
    """Raise an InputError unless `value` is an integer in least..most."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise InputError(f"{name} is {value!r}; expected {expected}")


def check_number(name: str, value: object, expected: str, within: Callable[[float], bool] = lambda x: True) -> None:
    """Raise an InputError unless `value` is a real number, not NaN, and `within` holds of it."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or math.isnan(float(value)) or not within(float(value)):  # type: ignore[arg-type]
        raise InputError(f"{name} is {value!r}; expected {expected}")


def check_kind(name: str, value: object, kind: type, expected: str) -> None:
    """Raise an InputError unless `value` is an instance of `kind`."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is {_shown(value)}; expected {expected}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"
