"""Depth use on a task of known depth: the runs that the claims hops.depth are judged on."""

from __future__ import annotations

from train.depth_use.protocol import PROTOCOL, ArmRun, Protocol, arm_runs
from train.depth_use.runs import ensure, ensure_all, result

__all__ = ["PROTOCOL", "ArmRun", "Protocol", "arm_runs", "ensure", "ensure_all", "result"]
