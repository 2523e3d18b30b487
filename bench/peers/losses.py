"""Per-loop cross-entropy in plain PyTorch, and with the losses that libraries offer for one exit.

Each takes the K states that exits read, what turns a state into what the head sees, the weight of the head and the
targets: states (K of (B, T, D)), weight (V, D), targets (B, T) int64; it returns the mean over exits, a scalar.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["PEERS", "Loss", "Show", "missing"]

Show = Callable[[Tensor], Tensor]
Loss = Callable[[Sequence[Tensor], Show, Tensor, Tensor], Tensor]


def eager(states: Sequence[Tensor], show: Show, weight: Tensor, targets: Tensor) -> Tensor:
    """A list of logits, a cross-entropy for each, their mean."""
    exits = [F.linear(show(state), weight) for state in states]
    losses = [F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1)) for logits in exits]
    return torch.stack(losses).mean()


@functools.cache
def _compiled() -> Loss:
    return torch.compile(eager)


def compiled(states: Sequence[Tensor], show: Show, weight: Tensor, targets: Tensor) -> Tensor:
    """The same under torch.compile."""
    return _compiled()(states, show, weight, targets)


def linear_cross_entropy(states: Sequence[Tensor], show: Show, weight: Tensor, targets: Tensor) -> Tensor:
    """torch's F.linear_cross_entropy without options, which is its reference implementation."""
    losses = [F.linear_cross_entropy(show(state).flatten(0, 1), weight, targets.flatten()) for state in states]
    return torch.stack(losses).mean()


def linear_cross_entropy_chunked(states: Sequence[Tensor], show: Show, weight: Tensor, targets: Tensor) -> Tensor:
    """torch's F.linear_cross_entropy with its chunking, as it comes."""
    options = torch.nn.LinearCrossEntropyOptions()
    losses = [
        F.linear_cross_entropy(show(state).flatten(0, 1), weight, targets.flatten(), options=options)
        for state in states
    ]
    return torch.stack(losses).mean()


def liger(states: Sequence[Tensor], show: Show, weight: Tensor, targets: Tensor) -> Tensor:
    """Liger Kernel's fused linear cross-entropy (CUDA)."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss()
    return torch.stack([loss(weight, show(state).flatten(0, 1), targets.flatten()) for state in states]).mean()


def cut_cross_entropy(states: Sequence[Tensor], show: Show, weight: Tensor, targets: Tensor) -> Tensor:
    """Apple's cut-cross-entropy (CUDA)."""
    from cut_cross_entropy import linear_cross_entropy as cut

    return torch.stack([cut(show(state).flatten(0, 1), weight, targets.flatten()) for state in states]).mean()


PEERS: Mapping[str, Loss] = {
    "eager": eager,
    "torch.compile": compiled,
    "F.linear_cross_entropy": linear_cross_entropy,
    "F.linear_cross_entropy, chunked": linear_cross_entropy_chunked,
    "liger-kernel": liger,
    "cut-cross-entropy": cut_cross_entropy,
}
_ON_CUDA = {"liger-kernel": "liger_kernel", "cut-cross-entropy": "cut_cross_entropy"}


def missing(name: str, device: str) -> str | None:
    """Why a peer cannot run here; None when it can."""
    if name.startswith("F.linear_cross_entropy") and not hasattr(F, "linear_cross_entropy"):
        return f"torch {torch.__version__} has no F.linear_cross_entropy"
    if (package := _ON_CUDA.get(name)) is None:
        return None
    if device != "cuda":
        return "runs on CUDA only"
    return None if importlib.util.find_spec(package) else f"{package} is not installed"
