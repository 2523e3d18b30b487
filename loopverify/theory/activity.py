"""Lemma 2 under one name: what the loop does to scale and direction.

`enclosures` bounds one update, `ledger` sums them over loops and sublayers, `recurrence` asks what becomes of scale in
the long run.
"""

from loopverify.theory.enclosures import DirectionBounds, direction_bounds, epsilon_shift, rounding, scale_enclosure
from loopverify.theory.ledger import Ledger, ledger_of_branches, ledger_of_states
from loopverify.theory.recurrence import Carry, CarryKind, carry, carry_kind

__all__ = [
    "Carry",
    "CarryKind",
    "DirectionBounds",
    "Ledger",
    "carry",
    "carry_kind",
    "direction_bounds",
    "epsilon_shift",
    "ledger_of_branches",
    "ledger_of_states",
    "rounding",
    "scale_enclosure",
]
