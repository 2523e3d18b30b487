"""The paper's rows and the conditions that they stand for: the one map between its names and this library's.

A condition is 'loss/readout' or 'loss/readout/recurrence'; the tables of Sharma & Vu 2026 name some by a short name.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    "Condition",
]


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition of the paper."""

    name: str
    """Loss, readout and, unless it is residual, recurrence: 'per_loop/rmsnorm', as its runs are named."""
    short: str
    """In ids of claims, where its loss is known: 'rmsnorm', 'penalty'."""
    words: str
    """In sentences of claims."""
    rows: tuple[str, ...] = ()
    """What its row is called in those of the paper's tables that do not print `name`."""

    @property
    def loss(self) -> str:
        """Where the loss is placed: 'per_loop', of 'per_loop+penalty/rmsnorm', too."""
        return self.name.split("/")[0].split("+")[0]

    @property
    def slug(self) -> str:
        """In ids of claims: 'per_loop.penalty'."""
        return f"{self.loss}.{self.short}"


TERMINAL_RMSNORM = Condition(name="terminal/rmsnorm", short="rmsnorm", words="terminal loss through RMSNorm")
TERMINAL_RAW = Condition(name="terminal/raw", short="raw", words="terminal loss through a raw readout")
PER_LOOP_RMSNORM = Condition(
    name="per_loop/rmsnorm", short="rmsnorm", words="per-loop loss through RMSNorm", rows=("rmsnorm", "baseline")
)
PER_LOOP_RAW = Condition(
    name="per_loop/raw", short="raw", words="per-loop loss through a raw readout", rows=("raw", "no_readout_norm")
)
PER_LOOP_FINAL_ONLY = Condition(
    name="per_loop/final_only",
    short="final_only",
    words="per-loop loss with a norm at the final exit only",
    rows=("final_only",),
)
TERMINAL_PENALTY = Condition(
    name="terminal+penalty/rmsnorm", short="penalty", words="terminal loss through RMSNorm plus a norm penalty"
)
PER_LOOP_PENALTY = Condition(
    name="per_loop+penalty/rmsnorm",
    short="penalty",
    words="per-loop loss through RMSNorm plus a norm penalty",
    rows=("penalty",),
)
EXIT_WEIGHTED = Condition(
    name="exit_weighted/rmsnorm",
    short="exit_weighted",
    words="exit-weighted loss through RMSNorm",
    rows=("exit_weighted",),
)
LATENT = Condition(
    name="per_loop+latent/rmsnorm", short="latent", words="per-loop loss through RMSNorm plus a latent-space loss"
)
DAMPED = Condition(
    name="terminal/rmsnorm/damped",
    short="damping",
    words="terminal loss through RMSNorm with spectral damping",
    rows=("spectral_damping",),
)
INTER_LOOP_NORM = Condition(
    name="per_loop/rmsnorm/inter_loop_norm",
    short="inter_loop_norm",
    words="per-loop loss through RMSNorm with a norm between loops",
)

TABLE_2_ROWS = (
    *(TERMINAL_RMSNORM, TERMINAL_RAW, PER_LOOP_RMSNORM, PER_LOOP_RAW, PER_LOOP_FINAL_ONLY),
    *(TERMINAL_PENALTY, PER_LOOP_PENALTY),
)
"""The rows of Table 2, in its order."""

CONDITIONS: tuple[Condition, ...] = (*TABLE_2_ROWS, EXIT_WEIGHTED, LATENT, DAMPED, INTER_LOOP_NORM)
"""Those, and the further conditions of the appendices."""

CONTROLLED = (PER_LOOP_RAW, PER_LOOP_FINAL_ONLY, PER_LOOP_PENALTY)
"""The per-loop conditions whose scale is under control."""
