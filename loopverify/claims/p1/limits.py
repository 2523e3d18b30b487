"""The least effects and bounds of the first paper's claims, frozen before the first stored run.

They require less than the paper reports for its own models, so that they can hold at other sizes too; every report
shows the published effect next to the limit. None is ever edited to fit a result: a study that misses one contradicts
the claim, and another limit is another claim. Norms are ‖H_4‖₂ (L2 over channels), losses are in nats per token.
"""

from __future__ import annotations

T2_LEAST_DRIFT = 30.0
"""Ratio of final norms, hidden over controlled scale."""
T2_LEAST_THOUSANDS = 1000.0
"""Final norm where scale is hidden."""
T2_MOST_TENS = 100.0
"""Final norm where scale is controlled."""
T2_LEAST_COST = 0.02
"""CE that hidden scale costs at exit 4 under per-loop loss."""
T2_LEAST_FAILURE = 0.3
"""CE from exit 1 to exit 4 under terminal loss."""
T2_MOST_GAP = 0.1
"""The same under per-loop loss."""
T2_LEAST_EXIT_COST = 0.1
"""CE by which exit 1 is worse under terminal than under per-loop loss."""

T3_MOST_OF_FLOOR = 10.0
"""Radial fraction of a blind readout, over the rounding floor of its dtype."""
T3_LEAST_VISIBLE = 1e-3
"""Radial fraction of a readout that shows scale."""
T3_LEAST_CONTRAST = 1000.0
"""Ratio of radial fractions, raw over RMSNorm."""

T4_MOST_NORM_LEFT = 0.8
"""Clamped over free final norm."""
T4_MOST_CHANGE = 0.02
"""|ΔCE| of the clamp."""

T5_MOST_GAIN = 0.01
"""CE that loops may gain a model that does not use its depth."""
T5_LEAST_GAIN = 0.01
"""CE that loops gain a model that does, alone and compared with one that does not."""
T5_LEAST_FIRST_EXIT = 0.02
"""CE by which hidden scale is worse at exit 1 under per-loop loss."""

T6_MOST_SPAN = 0.01
"""Least to largest CE over α of a readout that hides scale; for Figure 5 as well."""
T6_LEAST_SPAN = 0.1
"""The same for a readout that shows scale."""
T6_LEAST_CONTRAST = 100.0
"""Ratio of radial fractions at the last exit."""

T7_LEAST_SCORE = 0.01
"""Difference in the choices' NLL and in the gold margin, nats per token."""
T7_LEAST_PROBABILITY = 0.001
"""Probability of the gold choice."""
T7_MOST_ACCURACY_LOST = 0.01
"""Macro accuracy by which either readout may be ahead."""

T8_LEAST_COST = 0.005
"""CE by which RMSNorm is worse than raw at every depth."""
T8_LEAST_SPEED, T8_MOST_SPEED = 0.9, 1.1
"""Tokens per second of the raw readout over those of RMSNorm."""

T10_MOST_SPREAD = 2.0
"""p99 over median of a uniform drift."""
T10_LEAST_TAIL, T10_LEAST_SKEW = 10.0, 2.0
"""p99 and mean over median of a heavy tail."""
T10_MOST_P99 = 1000.0
"""p99 of final norms where scale is controlled."""
T10_LEAST_DRIFT = 30.0
"""Ratio of one percentile of final norms, hidden over visible scale."""

T11_LEAST_PLACEMENT = 0.3
"""CE of the gap from exit 1 to 4, terminal over per-loop loss."""

T12_LEAST_SIZE = 30.0
"""Ratio of update sizes, hidden over visible scale."""
T12_LEAST_VELOCITY = 1.0
"""rms per loop by which scale grows where it is hidden."""
T12_MOST_RATIO = 1.5
"""rms(b)/|a_rad| of an update that is mostly radial."""
T12_MOST_GROWTH_GAP = 0.05
"""Relative error of a_rad as a forecast of the growth of scale."""
T12_MOST_SLOPE_GAP = 0.25
"""|slope − 1| of log angular step in log 1/s; the paper says 'shrinks like 1/s'."""

T13_MOST_LOOPS = 1.1
"""Average loops of a model that does not use its depth."""
T13_LEAST_MORE_LOOPS = 0.3
"""Average additional loops of a model that does."""
T13_MOST_OVER_BUDGET = 1.02
"""Dynamic over fixed perplexity on sequences that were not used to fit the threshold."""

T14_LEAST_FAILURE = 1.0
"""CE by which shallow exits fail under terminal loss."""
T14_LEAST_IMPROVEMENT = 0.0
"""CE from one exit to the next under terminal loss."""

F7_MOST_OVERSHOOT = 0.05
"""CE between runs of 3, 4 and 8 loops of a model that normalizes between loops."""

A16_LEAST_DAMPING = 1.2
"""Ratio of final norms that spectral damping takes away."""
A16_LEAST_LEFT = 10.0
"""Ratio of final norms, damped over raw."""
A16_MOST_BETWEEN = 10.0
"""rms(H_4) after a norm between loops, which gives each state about the size of its gain; the paper says 'caps'."""
