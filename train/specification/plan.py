"""Estimates of what a run takes: parameters, floating-point operations, memory and time, before anything is trained.

Nothing is allocated: the model consists of fake tensors, which have shapes and dtypes but no content.

Shapes: B windows, T tokens per window, D channels, V vocabulary, K loops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from loopverify.errors import InputError
from loopverify.looped import Looped, Trace
from loopverify.models import LoopedTransformer
from train.specification.gpus import Gpu
from train.specification.run_spec import RunSpec

__all__ = ["Plan", "forward_flops", "plan"]

RESERVE = 1e9
"""Bytes of GPU memory that the model cannot use: CUDA context, library workspaces, fragmentation."""
_FLOAT32, _BFLOAT16 = 4, 2
_PROBE = 32  # tokens


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one run takes. Memory (bytes) is for float32 weights under bfloat16 autocast, neither recomputed nor
    compiled."""

    parameters: int
    """Number of parameters of the model; a tied head is counted once."""
    forward_flops: float
    """Floating-point operations per token of the forward pass over all K loops and exits: matrix products only, and
    attention in full, although a causal mask could spare half of it."""
    batch: int
    """Windows per step."""
    tokens_per_step: int
    steps: int | None
    """Steps of the whole run; None if the preset counts epochs and the length of the text is unknown."""
    constant_bytes: float
    """Bytes that do not depend on the micro-batch: weights, gradients, the two moments of AdamW, autocast's copies of
    the weights, and a chunk of logits if the run computes them in chunks."""
    window_bytes: float
    """Bytes per window of a micro-batch: what the backward pass keeps of the forward pass, and its largest
    temporaries."""

    @property
    def flops(self) -> float:
        """FLOPs per token of training: the backward pass has two matrix products for each of the forward pass."""
        return 3 * self.forward_flops

    def memory(self, micro_batch: int) -> float:
        """Bytes on one GPU that computes `micro_batch` windows at once."""
        return self.constant_bytes + micro_batch * self.window_bytes + RESERVE

    def largest_micro_batch(self, gpu: Gpu) -> int:
        """The largest micro-batch (windows) that fits one GPU, at most the batch; 0 if not even one window fits."""
        fit = int((gpu.memory - RESERVE - self.constant_bytes) // self.window_bytes)
        return max(0, min(self.batch, fit))

    def share(self, gpus: int) -> int:
        """Windows of a batch on the GPU with the largest share.

        Raises:
            InputError: gpus < 1, or more GPUs than windows in a batch.
        """
        if not 1 <= gpus <= self.batch:
            raise InputError(f"gpus is {gpus}; expected 1..{self.batch}, at least one window of a batch per GPU")
        return math.ceil(self.batch / gpus)

    def seconds_per_step(self, gpu: Gpu, *, mfu: float, gpus: int = 1) -> float:
        """Seconds per step if the GPU with the largest share reaches the fraction `mfu` of its peak.

        Raises:
            InputError: mfu outside (0, 1], or an invalid number of GPUs (see `share`).
        """
        if not 0 < mfu <= 1:
            raise InputError(f"mfu is {mfu}; expected the fraction of a GPU's peak that training reaches, in (0, 1]")
        return self.flops * self.tokens_per_step * self.share(gpus) / (self.batch * gpu.flops * mfu)


def plan(spec: RunSpec, *, train_tokens: int | None = None) -> Plan:
    """What the run of a spec takes, with the largest vocabulary that its preset allows.

    Args:
        train_tokens: the length of the training text, which determines the steps of a preset that counts epochs.

    Raises:
        InputError: the text is shorter than one batch.
    """
    p = spec.preset
    one_batch = p.seq_len + 1 + (p.batch - 1) * p.stride
    if train_tokens is not None and train_tokens < one_batch:
        raise InputError(f"train tokens are {train_tokens}; expected at least {one_batch:,}, the tokens of one batch")
    vocab = p.data.vocab_max
    with FakeTensorMode():  # fake CPU tensors: without dropout, CPU attention keeps the same tensors as on a GPU
        model = replace(spec, preset=replace(p, dropout=0.0)).model(vocab)
        tokens = torch.zeros(2, _PROBE, dtype=torch.int64)
        one, two = (_saved_bytes(spec, model, tokens[:count]) for count in (1, 2))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    token_bytes = (two - one) / _PROBE
    autocast_copies = one - token_bytes * _PROBE
    masks = p.loops * p.layers * 2 * p.d_model + p.d_model if p.dropout else 0  # one byte each
    if spec.chunk_tokens is None:
        fixed, temporaries = 0, 2 * _FLOAT32 * vocab  # the gradient of one exit's logits, and what it is computed from
    else:
        # The head in bfloat16, a chunk's logits in both precisions; and gradients of the exits' states, made at once.
        fixed = _BFLOAT16 * vocab * p.d_model + (_FLOAT32 + _BFLOAT16) * spec.chunk_tokens * vocab
        temporaries = _FLOAT32 * _exits(spec) * p.d_model
    return Plan(
        parameters=parameters,
        forward_flops=forward_flops(spec, vocab),
        batch=p.batch,
        tokens_per_step=p.batch * p.seq_len,
        steps=p.steps if train_tokens is None else p.total_steps(_windows(train_tokens, p.seq_len, p.stride)),
        constant_bytes=4 * _FLOAT32 * parameters + autocast_copies + fixed,
        window_bytes=p.seq_len * (token_bytes + masks + temporaries),
    )


def _windows(tokens: int, length: int, stride: int) -> int:
    """The number of training windows, as `train.data.Windows` counts them."""
    return max(0, (tokens - length - 1) // stride + 1)


def forward_flops(spec: RunSpec, vocab: int) -> float:
    """Floating-point operations of the matrix products per token of a forward pass, as in `Plan.forward_flops`."""
    p = spec.preset
    weights = 4 * p.d_model**2 + 3 * p.d_model * p.d_ff  # per layer: q, k, v, out; gate, up, down
    attention = 2 * p.seq_len * p.d_model  # scores, and weighted sums of values
    return 2.0 * (p.loops * p.layers * (weights + attention) + _exits(spec) * p.d_model * vocab)


def _exits(spec: RunSpec) -> int:
    """Number of exits that the loss decodes."""
    return 1 if spec.loss.startswith("terminal") else spec.preset.loops


def _saved_bytes(spec: RunSpec, model: LoopedTransformer, tokens: Tensor) -> int:
    """Bytes that the backward pass over tokens (B, T) keeps of the forward pass, weights excluded."""
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in own:
            kept[storage] = tensor  # keeps it alive, so that no other storage gets its address
        return tensor

    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        trace = _trace(model.looped(), tokens, spec.preset.loops)
        if spec.chunk_tokens is None:  # with chunks, each exit is differentiated at once and keeps nothing
            spec.objective()(trace, tokens)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _trace(model: Looped, tokens: Tensor, loops: int) -> Trace:
    """As `unroll`, without the checks of memory and content, neither of which fake tensors have."""
    state, context = model.embed(tokens)
    states = [state]
    for loop in range(1, loops + 1):
        states.append(model.step(states[-1], context, loop))
    return Trace(model, tokens, tuple(states), context)
