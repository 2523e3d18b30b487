"""The theory of the readout blind spot: tensors in, identities and enclosures out.

`oracle` states the same in mpmath and is imported explicitly (extra: oracle).
"""

from loopverify.theory.activity import (
    Carry,
    CarryKind,
    DirectionBounds,
    Ledger,
    carry,
    carry_kind,
    direction_bounds,
    epsilon_shift,
    ledger_of_branches,
    ledger_of_states,
    rounding,
    scale_enclosure,
)
from loopverify.theory.attenuation import Attenuation, future_signals, log_slope, measure_attenuation
from loopverify.theory.polar import Polar, direction, inner, radial_turning, scale, split
from loopverify.theory.readouts import ClampedL2, DynamicTanh, Head, LayerNorm, Raw, RMSNorm, Tapered, TokenReadout
from loopverify.theory.visibility import (
    fisher_visibility,
    floor,
    fraction_along,
    mean_fraction,
    penalty_radial_signal,
    predicted_radial_signal,
    radial_fraction,
    radial_signal,
    sigma,
)

__all__ = [
    "Attenuation",
    "Carry",
    "CarryKind",
    "ClampedL2",
    "DirectionBounds",
    "DynamicTanh",
    "Head",
    "LayerNorm",
    "Ledger",
    "Polar",
    "RMSNorm",
    "Raw",
    "Tapered",
    "TokenReadout",
    "carry",
    "carry_kind",
    "direction",
    "direction_bounds",
    "epsilon_shift",
    "fisher_visibility",
    "floor",
    "fraction_along",
    "future_signals",
    "inner",
    "ledger_of_branches",
    "ledger_of_states",
    "log_slope",
    "mean_fraction",
    "measure_attenuation",
    "penalty_radial_signal",
    "predicted_radial_signal",
    "radial_fraction",
    "radial_signal",
    "radial_turning",
    "rounding",
    "scale",
    "scale_enclosure",
    "sigma",
    "split",
]
