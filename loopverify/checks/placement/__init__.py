"""Where a looped model normalizes: inside the block, at the loop boundary, in the readout, or in several places."""

from __future__ import annotations

from loopverify.checks.placement.placement import norm_placement
from loopverify.checks.placement.places import NormPlace, Placement

__all__ = ["NormPlace", "Placement", "norm_placement"]
