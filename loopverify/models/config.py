"""What a `LoopedTransformer` can be made of: its shape, its readout, and what lies between two of its loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from loopverify.errors import InputError, unknown
from loopverify.models.readouts import READOUTS

__all__ = ["RECURRENCES", "TransformerConfig"]

INTER_LOOP = ("none", "own", "shared")
NORM_AT = ("end", "start")
RECURRENCES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "residual": {},
        "damped": {"damping": 0.9},
        "inter_loop_norm": {"inter_loop_norm": "own"},
        "shared_inter_loop_norm": {"inter_loop_norm": "shared"},
        "boundary_norm": {"inter_loop_norm": "own", "norm_at": "start"},
        "shared_boundary_norm": {"inter_loop_norm": "shared", "norm_at": "start"},
    }
)
"""What lies between two loops, by name: the fields of a `TransformerConfig` that say so."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Shape and interfaces of a `LoopedTransformer`."""

    vocab_size: int
    d_model: int = 64
    layers: int = 2
    heads: int = 2
    d_ff: int = 160
    """Width of the SwiGLU branch. The paper's 44M and 129M totals fit 4 * d_model with a tied head."""
    trained_loops: int = 4
    readout: str = "rmsnorm"
    """A name of `READOUTS`. `final_only`: raw intermediate exits, an RMSNorm final exit."""
    inter_loop_norm: Literal["none", "own", "shared"] = "none"
    """An RMSNorm of the state between two loops: none (the paper's ablations), a module of its own, or the readout's
    own module."""
    norm_at: Literal["end", "start"] = "end"
    """Where that norm is: at the end of every loop, so that exits show a normalized state; or at the start of loops
    2..K, so that exits see the state before it. Ouro is 'shared' at the 'start': one norm is boundary and readout."""
    sandwich_norm: bool = False
    """A second RMSNorm in every residual branch, of what the branch adds to the stream (as in Ouro)."""
    damping: float | None = None
    """Spectral damping (Sharma & Vu 2026, appendix 16): every loop begins by multiplying the state by one learned
    factor in (0, 1), of which this is the initial value (the paper states none); None: no factor."""
    exit_gate: bool = False
    """A learned gate that gives every exit a probability; see `models.exits`."""
    taper: tuple[float, float] = (0.25, 0.75)
    """The fractions of training at which a `tapered` readout starts to lose its norm and has lost it."""
    tied_head: bool = False
    dropout: float = 0.0
    norm_eps: float = 1e-6
    """Added to the mean square, in units of the squared state."""
    rope_theta: float = 10_000.0
    init_std: float = 0.02

    def __post_init__(self) -> None:
        if self.readout not in READOUTS:
            raise unknown("readout", self.readout, READOUTS)
        if self.inter_loop_norm not in INTER_LOOP:
            raise unknown("inter-loop norm", self.inter_loop_norm, INTER_LOOP)
        if self.norm_at not in NORM_AT:
            raise unknown("place of the inter-loop norm", self.norm_at, NORM_AT)
        for name in ("vocab_size", "d_model", "layers", "heads", "d_ff", "trained_loops"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected an integer >= 1")
        if self.d_model % self.heads or (self.d_model // self.heads) % 2:
            raise InputError(
                f"d_model {self.d_model} over {self.heads} heads; expected an even number of channels a head, "
                "which rotary positions turn in pairs"
            )
        if self.inter_loop_norm == "shared" and self.readout not in ("rmsnorm", "layernorm"):
            raise InputError(
                f"inter_loop_norm 'shared' with readout {self.readout!r}; expected a readout with a norm to share"
            )
        if self.damping is not None and not 0 < self.damping < 1:
            raise InputError(f"damping is {self.damping!r}; expected a factor in (0, 1), or None for no damping")
