"""Trainee: a model with its objective as one module, in one process or distributed over several by DDP or FSDP2.

Objectives call a model through the methods of `Looped`, not through the model's own forward. DDP and FSDP2, however,
attach their hooks to the forward of a module: without the module made here, no hook would run, and every rank would
train its own model.

The block is used K times in a forward pass but has one set of parameters. DDP's hook fires when autograd has
accumulated the gradient of a parameter over all K uses, so that it is reduced once per backward pass. FSDP2 gathers the
weights of a sublayer before each use, frees them afterwards, and reduces the gradient of each use separately; the K
reduced gradients add up in the shard. Both give the gradient of the shared weights, with another order of summation.

Shapes: B windows of a micro-batch, T tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

from loopverify.looped import Looped, unroll
from loopverify.models import LoopedTransformer
from loopverify.models.layers import Attention, SwiGLU
from loopverify.objectives import Objective, Terms
from train.data.examples import Batch
from train.engine.evaluate import evaluate
from train.machine.distributed import Ranks
from train.specification import Parallel, RunSpec

__all__ = ["Trainee", "trainee"]

Batches = Iterable[Batch]


class _Losses(nn.Module):
    """(tokens, targets), each (B, T) int64 -> the loss (nats per token) and its detached parts by name."""

    def __init__(self, module: LoopedTransformer, trained: Looped, shown: Looped, objective: Objective) -> None:
        super().__init__()
        self.module, self.trained, self.shown, self.objective = module, trained, shown, objective

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        terms: Terms = self.objective(unroll(self.trained, tokens, grad=True), targets)
        return terms.total, {name: part.detach() for name, part in terms.parts.items()}

    def evaluate(self, batches: Batches, by_depth: Mapping[int, Batch]) -> dict[str, float]:
        return evaluate(self.shown, batches, by_depth)

    def rms_by_loop(self, tokens: Tensor) -> list[float]:
        with torch.no_grad():
            return [float(state.float().square().mean().sqrt()) for state in unroll(self.shown, tokens).states]


class Trainee:
    """A model that is trained by one process."""

    def __init__(self, losses: _Losses, ranks: Ranks) -> None:
        self.module, self.losses, self._ranks = losses.module, losses, ranks

    def loss(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a micro-batch (nats per token), and its detached parts by name."""
        terms: tuple[Tensor, dict[str, Tensor]] = self.losses(tokens, targets)
        return terms

    def unsynchronized(self) -> AbstractContextManager[None]:
        """Context of the backward pass of all micro-batches but the last: gradients need not be reduced yet."""
        return nullcontext()

    def finish(self) -> None:
        """Average over ranks, after the last backward pass of a step, what DDP and FSDP2 do not.

        The buffers are running means of a readout, which are linear in the data, so that the mean over ranks is the
        running mean of the whole batch.
        """
        for buffer in self.module.buffers():
            self._ranks.average_(buffer)

    def parameter_groups(self) -> list[list[nn.Parameter]]:
        """The parameters, in groups that an optimizer can update in one fused call."""
        return [list(self.module.parameters())]

    def clip_(self, limit: float) -> Tensor:
        """Scale the whole gradient to an L2 norm <= `limit`; returns the norm before scaling."""
        return clip_grad_norm_(self.module.parameters(), limit)

    def evaluate(self, batches: Batches, by_depth: Mapping[int, Batch]) -> dict[str, float]:
        """As `train.engine.evaluate`, on every rank over all batches: quantiles cannot be averaged over ranks."""
        return self.losses.evaluate(batches, by_depth)

    def rms_by_loop(self, tokens: Tensor) -> list[float]:
        """Root mean square of H_0..H_K."""
        return self.losses.rms_by_loop(tokens)

    def weights(self) -> dict[str, Tensor]:
        """Full parameters and buffers by name; shared memory appears once (a tied head is the embedding)."""
        return {
            name: tensor.detach() for name, tensor in (*self.module.named_parameters(), *self.module.named_buffers())
        }


class _Replicated(Trainee):
    """A copy on every rank (DistributedDataParallel)."""

    def __init__(self, losses: _Losses, ranks: Ranks) -> None:
        super().__init__(losses, ranks)
        with warnings.catch_warnings():
            # The buffers are averaged in `finish`. The argument that replaces broadcast_buffers is missing in older
            # supported versions of torch.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            self._ddp = nn.parallel.DistributedDataParallel(losses, broadcast_buffers=False)

    def loss(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        terms: tuple[Tensor, dict[str, Tensor]] = self._ddp(tokens, targets)
        return terms

    def unsynchronized(self) -> AbstractContextManager[None]:
        return self._ddp.no_sync()


class _Sharded(Trainee):
    """A shard of every tensor on each rank (FSDP2's fully_shard), gathered one sublayer at a time.

    Parameters outside sublayers (embedding, head, norms) stay gathered for the length of a forward pass. FSDP2 cannot
    shard scalars; those of the model (a damping factor, the bias of a gate) are replicated, and their gradients are
    averaged here.
    """

    def __init__(self, losses: _Losses, ranks: Ranks) -> None:
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        super().__init__(losses, ranks)
        self._scalars = [parameter for parameter in self.module.parameters() if parameter.ndim == 0]
        for sublayer in _sublayers(losses.module):
            fully_shard(sublayer)
        fully_shard(losses, ignored_params=set(self._scalars))
        for method in ("evaluate", "rms_by_loop"):
            register_fsdp_forward_method(losses, method)

    def finish(self) -> None:
        super().finish()
        for scalar in self._scalars:
            if scalar.grad is not None:
                self._ranks.average_(scalar.grad)

    def parameter_groups(self) -> list[list[nn.Parameter]]:
        scalars = set(self._scalars)
        sharded = [parameter for parameter in self.module.parameters() if parameter not in scalars]
        return [sharded, self._scalars] if self._scalars else [sharded]

    def clip_(self, limit: float) -> Tensor:
        groups = self.parameter_groups()
        norms = [_whole(get_total_norm([p.grad for p in group if p.grad is not None])) for group in groups]
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        for group in groups:
            clip_grads_with_norm_(group, limit, total)
        return total

    def evaluate(self, batches: Batches, by_depth: Mapping[int, Batch]) -> dict[str, float]:
        with torch.compiler.set_stance(
            "force_eager"
        ):  # evaluation runs the same sublayers that are compiled for training
            return super().evaluate(batches, by_depth)

    def weights(self) -> dict[str, Tensor]:
        return {name: _whole(tensor) for name, tensor in super().weights().items()}


def trainee(spec: RunSpec, module: LoopedTransformer, ranks: Ranks) -> Trainee:
    """The model of a run, prepared for training by the run's `Execution`."""
    shown = module.looped(spec.condition)
    trained = _compiled(module, shown, spec.execution.parallel) if spec.execution.compiled else shown
    kind = {None: Trainee, "ddp": _Replicated, "fsdp": _Sharded}[spec.execution.parallel]
    return kind(_Losses(module, trained, shown, spec.objective()), ranks)


def _compiled(module: LoopedTransformer, shown: Looped, parallel: Parallel | None) -> Looped:
    """The model to train, with its block compiled; for FSDP with every sublayer compiled.

    The forward method of a sublayer is compiled before the sublayer is sharded, so that the hooks that gather and free
    its weights run around the compiled forward, outside of every graph.
    """
    if parallel != "fsdp":
        return replace(shown, step=torch.compile(module.step))
    for sublayer in _sublayers(module):
        sublayer.forward = torch.compile(sublayer.forward)
    return shown


def _sublayers(module: LoopedTransformer) -> list[nn.Module]:
    """The modules whose weights FSDP gathers together."""
    return [sublayer for sublayer in module.modules() if isinstance(sublayer, Attention | SwiGLU)]


def _whole(tensor: Tensor) -> Tensor:
    """The full tensor, gathered if this rank holds a shard."""
    from torch.distributed.tensor import DTensor

    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole
