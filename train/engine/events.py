"""Events: what a run says while it goes on, one line of metrics.jsonl each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["Event", "Report", "evaluations"]

Event = dict[str, Any]
"""'event' is 'start', 'step', 'eval', 'resume' or 'end'; the rest are numbers and words."""
Report = Callable[[Event], None]
"""Who hears of them."""


def evaluations(log: str) -> list[Event]:
    """The evaluations during training that a log holds, in order: {'step', 'norm@k', 'ce@k', ...}."""
    return [event for event in map(json.loads, log.splitlines()) if event["event"] == "eval"]
