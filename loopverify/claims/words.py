"""How conditions are called in the sentences and the ids of claims."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["CONTROLLED", "WORDS", "sentence", "slug"]

WORDS: Mapping[str, str] = MappingProxyType(
    {
        "terminal/rmsnorm": "terminal loss through RMSNorm",
        "terminal/raw": "terminal loss through a raw readout",
        "per_loop/rmsnorm": "per-loop loss through RMSNorm",
        "per_loop/raw": "per-loop loss through a raw readout",
        "per_loop/final_only": "per-loop loss with a norm at the final exit only",
        "terminal+penalty/rmsnorm": "terminal loss through RMSNorm plus a norm penalty",
        "per_loop+penalty/rmsnorm": "per-loop loss through RMSNorm plus a norm penalty",
        "exit_weighted/rmsnorm": "exit-weighted loss through RMSNorm",
        "per_loop+latent/rmsnorm": "per-loop loss through RMSNorm plus a latent-space loss",
        "terminal/rmsnorm/damped": "terminal loss through RMSNorm with spectral damping",
        "per_loop/rmsnorm/inter_loop_norm": "per-loop loss through RMSNorm with a norm between loops",
    }
)
"""The rows of Table 2, and the further conditions of the appendices."""

CONTROLLED: Mapping[str, str] = MappingProxyType(
    {"raw": "per_loop/raw", "final_only": "per_loop/final_only", "penalty": "per_loop+penalty/rmsnorm"}
)
"""The per-loop conditions whose scale is under control, by their short names in ids and in Tables 5 and 13."""


def slug(condition: str) -> str:
    """'per_loop+penalty/rmsnorm' -> 'per_loop.penalty'; a readout without penalty names itself."""
    loss, readout = condition.split("/")
    return loss.replace("+", ".") if "+" in loss else f"{loss}.{readout}"


def sentence(clause: str) -> str:
    """The clause as a sentence."""
    return f"{clause[0].upper()}{clause[1:]}."
