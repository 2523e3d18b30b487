"""The conditions behind the paper's rows: the only map between its names and this library's.

A condition is 'loss/readout' or 'loss/readout/recurrence'; the tables of Sharma & Vu 2026 name some by a short name.
"""

from __future__ import annotations

from loopverify.claims.template import Condition

__all__ = [
    "CONDITIONS",
    "CONTROLLED",
    "DAMPED",
    "EXIT_WEIGHTED",
    "INTER_LOOP_NORM",
    "LATENT",
    "PER_LOOP_FINAL_ONLY",
    "PER_LOOP_PENALTY",
    "PER_LOOP_RAW",
    "PER_LOOP_RMSNORM",
    "TABLE_2_ROWS",
    "TERMINAL_PENALTY",
    "TERMINAL_RAW",
    "TERMINAL_RMSNORM",
]

TERMINAL_RMSNORM = Condition("terminal/rmsnorm", "rmsnorm", "terminal loss through RMSNorm")
TERMINAL_RAW = Condition("terminal/raw", "raw", "terminal loss through a raw readout")
PER_LOOP_RMSNORM = Condition("per_loop/rmsnorm", "rmsnorm", "per-loop loss through RMSNorm", ("rmsnorm", "baseline"))
PER_LOOP_RAW = Condition("per_loop/raw", "raw", "per-loop loss through a raw readout", ("raw", "no_readout_norm"))
PER_LOOP_FINAL_ONLY = Condition(
    "per_loop/final_only", "final_only", "per-loop loss with a norm at the final exit only", ("final_only",)
)
TERMINAL_PENALTY = Condition("terminal+penalty/rmsnorm", "penalty", "terminal loss through RMSNorm plus a norm penalty")
PER_LOOP_PENALTY = Condition(
    "per_loop+penalty/rmsnorm", "penalty", "per-loop loss through RMSNorm plus a norm penalty", ("penalty",)
)
EXIT_WEIGHTED = Condition(
    "exit_weighted/rmsnorm", "exit_weighted", "exit-weighted loss through RMSNorm", ("exit_weighted",)
)
LATENT = Condition("per_loop+latent/rmsnorm", "latent", "per-loop loss through RMSNorm plus a latent-space loss")
DAMPED = Condition(
    "terminal/rmsnorm/damped", "damping", "terminal loss through RMSNorm with spectral damping", ("spectral_damping",)
)
INTER_LOOP_NORM = Condition(
    "per_loop/rmsnorm/inter_loop_norm", "inter_loop_norm", "per-loop loss through RMSNorm with a norm between loops"
)

TABLE_2_ROWS = (
    *(TERMINAL_RMSNORM, TERMINAL_RAW, PER_LOOP_RMSNORM, PER_LOOP_RAW, PER_LOOP_FINAL_ONLY),
    *(TERMINAL_PENALTY, PER_LOOP_PENALTY),
)
"""The rows of Table 2, in the order of the table."""

CONDITIONS: tuple[Condition, ...] = (*TABLE_2_ROWS, EXIT_WEIGHTED, LATENT, DAMPED, INTER_LOOP_NORM)
"""All conditions: the rows of Table 2, and those of the appendices."""

CONTROLLED = (PER_LOOP_RAW, PER_LOOP_FINAL_ONLY, PER_LOOP_PENALTY)
"""The per-loop conditions with controlled scale."""
