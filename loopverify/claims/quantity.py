"""The format of numbers and quantities in reports."""

from __future__ import annotations

__all__ = ["number", "quantity"]


def number(x: float, like: float | None = None) -> str:
    """A number to three digits, which a comparison over seeds can support: 0.116, 37.2, 44, 39,207, 1.1e+09, 4.7e-09.

    With `like`, it has the decimals of that number instead, so that an error is as precise as its value.
    """
    size = abs(x if like is None else like)
    if not max(size, abs(x)) < 1e6:  # also inf and nan
        return f"{x:.3g}"
    if 0 < size < 1e-3:
        return f"{x:.3g}"
    decimals = 0 if size >= 100 or x == round(x) else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{x:,.{decimals}f}"


def quantity(x: float, of: str) -> str:
    """A number with its unit: '×891', '0.116 nats', '39,207 L2'."""
    return f"×{number(x)}" if of == "×" else f"{number(x)} {of}".rstrip()
