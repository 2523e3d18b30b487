"""The tables of checks and traits for the documentation, from docstrings: `python -m loopverify.checks.catalog`."""

from __future__ import annotations

import sys

from loopverify.checks.conformance import CHECKS
from loopverify.checks.traits import TRAITS

__all__ = ["catalog_markdown", "traits_markdown"]


def catalog_markdown() -> str:
    """A Markdown table: check, what it catches, and the optional parts of `Looped` that it needs."""
    rows = [
        f"| `{check.id}` | {check.catches} | {', '.join(f'`{need}`' for need in check.needs)} |"
        for check in CHECKS.values()
    ]
    return "\n".join(["| check | what it catches | needs |", "|---|---|---|", *rows]) + "\n"


def traits_markdown() -> str:
    """A Markdown table: trait, its meaning, and the check that decides whether a model has it."""
    deciding = {check.decides: check.id for check in CHECKS.values() if check.decides}
    rows = [f"| `{trait}` | {meaning} | `{deciding.get(trait, 'growth_law')}` |" for trait, meaning in TRAITS.items()]
    return "\n".join(["| trait | meaning | decided by |", "|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(f"{catalog_markdown()}\n{traits_markdown()}")
