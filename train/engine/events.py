"""Events: what a run says while it goes on, one line of metrics.jsonl each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Event", "Report"]

Event = dict[str, Any]
"""'event' is 'start', 'step', 'eval', 'resume' or 'end'; the rest are numbers and words."""
Report = Callable[[Event], None]
"""Who hears of them."""
