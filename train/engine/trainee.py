"""Trainee: a model with its objective as one module, in one process or spread over several by DDP or FSDP2.

Objectives reach a model through the methods of `Looped`, never through the model's own forward; what DDP and FSDP2
hook is therefore the module made here. A block that is used K times in a forward is one set of parameters: DDP reduces
its gradient once a backward, when all K uses are summed; FSDP2 gathers it for each use and sums K reduced gradients.

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
    """(tokens, targets), each (B, T) int64 -> the loss (nats a token) and its detached parts by name."""

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
    """A model in training, by one process."""

    def __init__(self, losses: _Losses, ranks: Ranks) -> None:
        self.module, self.losses, self._ranks = losses.module, losses, ranks

    def loss(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a micro-batch (nats a token), and its detached parts by name."""
        told: tuple[Tensor, dict[str, Tensor]] = self.losses(tokens, targets)
        return told

    def unsynchronized(self) -> AbstractContextManager[None]:
        """For the backward of a micro-batch after which others follow: the ranks need not agree on gradients yet."""
        return nullcontext()

    def finish(self) -> None:
        """After the last backward of a step: what the ranks have to agree on besides gradients.

        Running means of a readout are linear in what they see, so their mean is that of the whole batch.
        """
        for buffer in self.module.buffers():
            self._ranks.average_(buffer)

    def parameter_groups(self) -> list[list[nn.Parameter]]:
        """The parameters, by what an optimizer can update in one call."""
        return [list(self.module.parameters())]

    def clip_(self, limit: float) -> Tensor:
        """Scale the whole gradient to an L2 norm <= `limit`; returns the norm that it had."""
        return clip_grad_norm_(self.module.parameters(), limit)

    def evaluate(self, batches: Batches, by_depth: Mapping[int, Batch]) -> dict[str, float]:
        """As `train.engine.evaluate`, on every rank over all batches: medians and quantiles have no mean over ranks."""
        return self.losses.evaluate(batches, by_depth)

    def rms_by_loop(self, tokens: Tensor) -> list[float]:
        """Root mean square of H_0..H_K."""
        return self.losses.rms_by_loop(tokens)

    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, whole, each memory once (a tied head is the embedding)."""
        return {
            name: tensor.detach() for name, tensor in (*self.module.named_parameters(), *self.module.named_buffers())
        }


class _Replicated(Trainee):
    """A copy on every rank (DistributedDataParallel)."""

    def __init__(self, losses: _Losses, ranks: Ranks) -> None:
        super().__init__(losses, ranks)
        with warnings.catch_warnings():
            # The buffers are averaged in `finish`; the successor of the argument is not in every supported torch.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            self._ddp = nn.parallel.DistributedDataParallel(losses, broadcast_buffers=False)

    def loss(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        told: tuple[Tensor, dict[str, Tensor]] = self._ddp(tokens, targets)
        return told

    def unsynchronized(self) -> AbstractContextManager[None]:
        return self._ddp.no_sync()


class _Sharded(Trainee):
    """A shard of every tensor on each rank (FSDP2's fully_shard), gathered a sublayer at a time.

    What is no sublayer (embedding, head, norms) stays gathered for the length of a forward. FSDP2 shards no scalars;
    those of the model (a damping factor, the bias of a gate) are copies whose gradients are averaged here.
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
        with torch.compiler.set_stance("force_eager"):  # the sublayers that may be compiled are also those shown
            return super().evaluate(batches, by_depth)

    def weights(self) -> dict[str, Tensor]:
        return {name: _whole(tensor) for name, tensor in super().weights().items()}


def trainee(spec: RunSpec, module: LoopedTransformer, ranks: Ranks) -> Trainee:
    """The model of a run, ready to train as the run's `Execution` says."""
    shown = module.looped(spec.condition)
    trained = _compiled(module, shown, spec.execution.parallel) if spec.execution.compiled else shown
    kind = {None: Trainee, "ddp": _Replicated, "fsdp": _Sharded}[spec.execution.parallel]
    return kind(_Losses(module, trained, shown, spec.objective()), ranks)


def _compiled(module: LoopedTransformer, shown: Looped, parallel: Parallel | None) -> Looped:
    """The model to train, its block compiled; for FSDP sublayer by sublayer.

    Of a sublayer its forward is compiled, before it is sharded: the hooks that gather and free its weights lie around
    the forward, outside of every graph.
    """
    if parallel != "fsdp":
        return replace(shown, step=torch.compile(module.step))
    for sublayer in _sublayers(module):
        sublayer.forward = torch.compile(sublayer.forward)
    return shown


def _sublayers(module: LoopedTransformer) -> list[nn.Module]:
    """What FSDP gathers at once."""
    return [sublayer for sublayer in module.modules() if isinstance(sublayer, Attention | SwiGLU)]


def _whole(tensor: Tensor) -> Tensor:
    """A tensor of which this rank may hold a shard, gathered."""
    from torch.distributed.tensor import DTensor

    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole
