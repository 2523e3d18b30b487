"""The theory of the readout blind spot: tensors in, identities and enclosures out.

`oracle` computes the same in mpmath; it has to be imported explicitly (extra: oracle).
"""

from loopverify.theory.attenuation import future_signals, log_slope, measure_attenuation
from loopverify.theory.enclosures import direction_bounds, epsilon_shift, scale_enclosure
from loopverify.theory.ledger import ledger_of_branches, ledger_of_states
from loopverify.theory.polar import direction, radial_turning, scale, split
from loopverify.theory.readouts import ClampedL2, DynamicTanh, Head, LayerNorm, Raw, RMSNorm, Tapered, TokenReadout
from loopverify.theory.recurrence import carry, carry_kind
from loopverify.theory.visibility import (
    fisher_visibility,
    floor,
    fraction_along,
    mean_fraction,
    penalty_radial_signal,
    predicted_radial_signal,
    radial_fraction,
    radial_signal,
)

__all__ = [
    "ClampedL2",
    "DynamicTanh",
    "Head",
    "LayerNorm",
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
    "scale",
    "scale_enclosure",
    "split",
]
