"""The least effects and bounds of the claims on following pointers, frozen before the first run; losses are in nats per
answer. None is ever edited to fit a result."""

from __future__ import annotations

MOST_GAIN = 0.05
"""CE that loops may gain a model that does not use its depth; 4,096 answers resolve differences of 0.02."""
LEAST_GAIN = 0.1
"""CE that loops gain a model that does, alone and compared with one that does not; knowing only one step of the way
costs about 1."""
FIRST_EXIT = 0.75
"""CE(1) at which conditions are compared at equal progress. To know answers of one step and guess the others uniformly
is 0.75 * log(4) = 1.04."""
LEAST_AT_EQUAL_EXIT = 0.05
"""CE gained over another condition at an equal first exit."""
LEAST_DRIFT = 3.0
"""Ratio of final norms, hidden over controlled scale."""
