"""Measuring a model without leaving a trace in it."""

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
    """Evaluation mode and random numbers of its own from `seed`; afterwards all is bit for bit as it was.

    Kept as found: every module's training flag, every buffer (the object and its values), the random state of the CPU
    and of all CUDA devices in use. Gradients can be recorded inside, whatever the mode around it.

    Raises:
        InputError: a seed that torch does not take.
    """
    check_seed(seed)
    modules = [module for root in model.modules() for module in root.modules()]
    with ExitStack() as stack:
        # A cast of a weight that autocast caches without a graph would silently cut the caller's next backward pass.
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
        # The flag itself rather than .eval(), which models override (to merge weights, for one).
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
    # torch.manual_seed would also leave a seed behind for a CUDA that has not started yet.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(int(seed))
        if devices:
            torch.cuda.manual_seed_all(int(seed))
        yield
