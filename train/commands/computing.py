"""Options that all commands share which train: how the steps of a run are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from train.specification import Execution, Parallel, Precision

__all__ = ["Computing"]


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How the steps of a run are computed; a result depends on it by rounding only."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the forwards: bfloat16 autocast on a GPU that has it, float32 on a CPU."""
    micro_batch: int | None = None
    """Windows computed at once, gradients being summed up to the preset's batch; as many as fit when omitted."""
    compile: bool = False
    """Compile the block with torch.compile, once for every loop."""
    parallel: Parallel = "ddp"
    """How several processes of a run hold the model: each a copy, or each a shard."""

    def execution(self, precision: Precision | None, ranks: int) -> Execution:
        """The execution these options name, of a run of so many processes.

        Args:
            precision: what `train.machine.hardware.use_precision` made of the one asked for.
        """
        return Execution(
            ranks=ranks,
            parallel=self.parallel if ranks > 1 else None,
            micro_batch=self.micro_batch,
            compiled=self.compile,
            precision=precision,
        )
