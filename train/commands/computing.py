"""The options of all commands that train: how the steps of a run are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from train.specification import Execution, Parallel, Precision

__all__ = ["Computing"]


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How the steps of a run are computed; results differ by rounding only."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of forward passes; auto: bfloat16 autocast on a GPU that supports it, float32 on a CPU."""
    micro_batch: int | None = None
    """Windows per forward and backward pass; gradients accumulate to the preset's batch. As many as fit if omitted."""
    compile: bool = False
    """Compile the block with torch.compile, once for every loop."""
    parallel: Parallel = "ddp"
    """How several processes of a run hold the model: a copy each (ddp) or a shard each (fsdp)."""

    def execution(self, precision: Precision | None, ranks: int) -> Execution:
        """The execution that these options select for a run of `ranks` processes.

        Args:
            precision: the resolved one, from `train.machine.hardware.use_precision`.
        """
        return Execution(
            ranks=ranks,
            parallel=self.parallel if ranks > 1 else None,
            micro_batch=self.micro_batch,
            compiled=self.compile,
            precision=precision,
        )
