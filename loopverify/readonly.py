"""Measuring a model and leaving it unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from loopverify.arguments import check_seed
from loopverify.looped import Looped

__all__ = ["untouched"]


@contextmanager
def untouched(model: Looped, seed: int = 0) -> Iterator[None]:
    """Run the body in evaluation mode with random numbers from `seed`; afterwards everything is as before, bit for bit.

    Restored are the training flag of every module, every buffer (the object and its values), and the random state of
    the CPU and of all CUDA devices in use. Gradients are enabled inside, regardless of the surrounding mode.

    Raises:
        InputError: torch does not accept the seed.
    """
    check_seed(seed)
    modules = [module for root in model.modules() for module in root.modules()]
    with ExitStack() as stack:
        # Autocast caches casts of weights. One that was made without a graph would cut the caller's next backward pass.
        stack.callback(torch.clear_autocast_cache)
        stack.enter_context(_own_random_numbers(seed))
        stack.enter_context(_evaluation_mode(modules))
        stack.enter_context(_restored_buffers(modules))
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        yield


@contextmanager
def _evaluation_mode(modules: list[nn.Module]) -> Iterator[None]:
    training = [module.training for module in modules]
    try:
        # The flag itself, not .eval(), which some models override (for example to merge weights).
        for module in modules:
            module.training = False
        yield
    finally:
        for module, flag in zip(modules, training, strict=True):
            module.training = flag


@contextmanager
def _restored_buffers(modules: list[nn.Module]) -> Iterator[None]:
    found = [
        (module, name, buffer, buffer.detach().clone())
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for module, name, buffer, values in found:
            _restore(module, name, buffer, values)


def _restore(module: nn.Module, name: str, buffer: Tensor, values: Tensor) -> None:
    if getattr(module, name) is not buffer:
        setattr(module, name, buffer)
    if not torch.equal(buffer, values):
        with torch.no_grad():
            buffer.copy_(values)


@contextmanager
def _own_random_numbers(seed: int) -> Iterator[None]:
    # Not torch.manual_seed: it would also queue a seed for a CUDA that is not initialized yet.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(int(seed))
        if devices:
            torch.cuda.manual_seed_all(int(seed))
        yield
