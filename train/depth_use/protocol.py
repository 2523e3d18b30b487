"""The protocol of the depth-use experiment, fixed before its first run.

Task: `Hops` over 5 symbols, answers of 1 to 4 steps in equal shares, fresh instances at every step, loss at the answer
only. By construction no answer is its start, and none can be had in fewer steps. (In a random permutation the start
itself answers 1/5, 2/5, 2/5 and 3/5 of the questions of 1, 2, 3 and 4 steps, and a model can live on that alone.)

Model: the reference transformer, d = 64, one layer of 4 heads a loop, K = 4: a loop attends once.

Training: every exit (per-loop loss), AdamW, batch 64, lr 2e-3 after 50 steps of warm-up, weight decay 0.1, clip 1.0,
3,000 steps. All arms alike, but for what names them. Steps and shape were chosen on one run of the raw arm with a seed
that is not used here (900): what two cores can train over three seeds in about half an hour.

Measured: CE and accuracy at every exit and the norms of all tokens, on 4,096 fresh instances after the last step. Every
100 steps, 1,024 instances: the first of these evaluations at which CE(1) is at most `FIRST_EXIT` gives ce_matched@k.

Seeds 0, 1, 2, with which exact rank tests reach p = 0.05. Claims, least effects and tests: `loopverify.claims`, under
hops.depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from loopverify.errors import unknown
from loopverify.models import RECURRENCES, LoopedTransformer, TransformerConfig
from loopverify.tasks import Hops
from train.spec import code_digest

__all__ = ["ARMS", "PROTOCOL", "Arm", "ArmRun", "Protocol", "arm_runs"]

# What a change of turns old results into results of other code.
_DETERMINING = (
    "loopverify/looped.py",
    "loopverify/models",
    "loopverify/objectives",
    "loopverify/probes/norms.py",
    "loopverify/probes/depth.py",
    "loopverify/tasks",
    "train/engine/evaluate.py",
    "train/depth_use/loop.py",
)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What all arms and seeds share."""

    task: Hops = field(default_factory=lambda: Hops(symbols=5, depth=4))
    d_model: int = 64
    layers: int = 1
    heads: int = 4
    d_ff: int = 160
    loops: int = 4
    batch: int = 64
    """Instances a step."""
    steps: int = 3000
    warmup_steps: int = 50
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    """Largest L2 norm of the whole gradient."""
    eval_instances: int = 4096
    """Of the final evaluation."""
    history_instances: int = 1024
    """Of the evaluations during training."""
    history_every: int = 100
    """Steps between them."""


PROTOCOL = Protocol()


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What tells one condition from another."""

    readout: str
    loss: str = "per_loop"
    recurrence: str = "residual"
    lr: float = 2e-3


ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        "hops/rmsnorm": Arm(readout="rmsnorm"),
        "hops/raw": Arm(readout="raw"),
        "hops/penalty": Arm(readout="rmsnorm", loss="per_loop+penalty"),
        "hops/final_only": Arm(readout="final_only"),
        "hops/inter_loop_norm": Arm(readout="rmsnorm", recurrence="inter_loop_norm"),
        "hops/rmsnorm@5e-3": Arm(readout="rmsnorm", lr=5e-3),
        "hops/raw@7e-4": Arm(readout="raw", lr=7e-4),
    }
)
"""By the conditions of the claims."""


@dataclass(frozen=True, kw_only=True)
class ArmRun:
    """One arm with one seed."""

    condition: str
    seed: int = 0
    protocol: Protocol = PROTOCOL

    def __post_init__(self) -> None:
        if self.condition not in ARMS:
            raise unknown("condition", self.condition, ARMS)

    @property
    def arm(self) -> Arm:
        """What is trained."""
        return ARMS[self.condition]

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.condition} seed {self.seed}"

    def model(self) -> LoopedTransformer:
        """A freshly initialized model, drawn from torch's global generator."""
        p = self.protocol
        return LoopedTransformer(
            TransformerConfig(
                vocab_size=p.task.vocab_size,
                d_model=p.d_model,
                layers=p.layers,
                heads=p.heads,
                d_ff=p.d_ff,
                trained_loops=p.loops,
                readout=self.arm.readout,  # type: ignore[arg-type]  # one of ARMS
                **RECURRENCES[self.arm.recurrence],
            )
        )

    def determinants(self) -> dict[str, Any]:
        """Everything that determines the result, as JSON: the key under which the run is stored."""
        return {
            "protocol": asdict(self.protocol),
            "arm": asdict(self.arm),
            "seed": self.seed,
            "code": code_digest(_DETERMINING),
            "torch": torch.__version__,
        }


def arm_runs(seeds: int, protocol: Protocol = PROTOCOL) -> list[ArmRun]:
    """Every arm with seeds 0..seeds-1."""
    return [ArmRun(condition=name, seed=seed, protocol=protocol) for seed in range(seeds) for name in ARMS]
