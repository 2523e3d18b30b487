"""Which tokens influence each other: causality, batches, padding, masks, caches.

Each module holds the checks of one theme; `THEMES` is the order in which they run.
"""

from __future__ import annotations

from loopverify.checks.sequence import caches, masks, padding, tokens

__all__ = ["THEMES"]

THEMES = (tokens, padding, masks, caches)
