"""The files of a stored run of training."""

from __future__ import annotations

__all__ = ["METRICS", "MODEL", "RESULT"]

METRICS = "metrics.jsonl"
"""The log, an event a line."""
MODEL = "model.safetensors"
"""The trained weights."""
RESULT = "result.json"
"""What claims are judged on (`loopverify.claims.Run`)."""
