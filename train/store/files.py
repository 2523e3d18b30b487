"""The files of a stored run of training."""

from __future__ import annotations

__all__ = ["METRICS", "MODEL", "RESULT"]

METRICS = "metrics.jsonl"
"""The log, one JSON event per line."""
MODEL = "model.safetensors"
"""The trained weights."""
RESULT = "result.json"
"""The metrics on which claims are judged (`loopverify.claims.Run`)."""
