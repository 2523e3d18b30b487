"""Events: the progress reports of a run, each one line of metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["Event", "Report", "evaluations"]

Event = dict[str, Any]
"""'event' is 'start', 'step', 'eval', 'resume' or 'end'; the other entries are numbers and texts."""
Report = Callable[[Event], None]
"""Receives events."""


def evaluations(log: str) -> list[Event]:
    """The evaluations during training in a log, in order: {'step', 'norm@k', 'ce@k', ...}."""
    return [event for event in map(json.loads, log.splitlines()) if event["event"] == "eval"]
