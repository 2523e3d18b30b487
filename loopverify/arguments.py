"""Checks of arguments before any work, so that an invalid one raises a clear error and does not fail inside torch.

Shapes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real

import torch
from torch import Tensor

from loopverify.errors import InputError

__all__ = [
    "IGNORE",
    "check_count",
    "check_kind",
    "check_logits",
    "check_number",
    "check_seed",
    "check_targets",
    "check_tokens",
    "check_vocabulary",
    "is_count",
]

IGNORE = -100
"""The target of a token that no loss counts, torch's default `ignore_index`."""


def is_count(value: object, least: int = 1, most: float = math.inf) -> bool:
    """Whether `value` is an integer in least..most, and not a bool."""
    return not isinstance(value, bool) and isinstance(value, Integral) and least <= int(value) <= most


def check_count(
    name: str, value: object, expected: str = "an integer >= 1", *, least: int = 1, most: float = math.inf
) -> None:
    """Raise an InputError unless `value` is an integer in least..most."""
    if not is_count(value, least, most):
        raise InputError(f"{name} is {value!r}; expected {expected}")


def check_seed(seed: object) -> None:
    """Raise an InputError unless `seed` is an integer in 0..2^63 - 1, as torch's generators require."""
    check_count("seed", seed, "an integer in 0..2^63 - 1", least=0, most=2**63 - 1)


def check_number(name: str, value: object, expected: str, within: Callable[[float], bool] = lambda x: True) -> None:
    """Raise an InputError unless `value` is a real number, not NaN, for which `within` is true."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or math.isnan(float(value)) or not within(float(value)):  # type: ignore[arg-type]
        raise InputError(f"{name} is {value!r}; expected {expected}")


def check_kind(name: str, value: object, kind: type, expected: str) -> None:
    """Raise an InputError unless `value` is an instance of `kind`."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is {_shown(value)}; expected {expected}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"


def check_tokens(tokens: Tensor, vocab_size: int | None) -> None:
    """Raise an InputError unless `tokens` is a non-empty batch (B, T) int64 of ids in 0..vocab_size - 1.

    The range is checked on CPU tensors only, and only if `vocab_size` is known.
    """
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64 or tokens.ndim != 2 or 0 in tokens.shape:
        seen = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise InputError(f"tokens are {seen}; expected a non-empty int64 tensor of shape (B, T)")
    # On an accelerator this would synchronize at every step; there the embedding itself raises.
    if vocab_size is not None and tokens.device.type == "cpu":
        low, high = (int(bound) for bound in tokens.aminmax())
        if low < 0 or high >= vocab_size:
            raise InputError(
                f"tokens span {low}..{high}; expected 0..{vocab_size - 1} for a vocabulary of {vocab_size}. "
                "Was the text encoded with this model's tokenizer?"
            )


def check_targets(targets: object, tokens: object) -> None:
    """Raise an InputError unless `targets` are int64 of the shape of `tokens` (which `check_tokens` checks)."""
    shape = tuple(getattr(tokens, "shape", ()))
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64 or targets.shape != shape:
        seen = f"{targets.dtype} {tuple(targets.shape)}" if isinstance(targets, Tensor) else type(targets).__name__
        raise InputError(
            f"targets are {seen}; expected int64 {shape} as the tokens, the next token of every token "
            f"({IGNORE} leaves a token out). For sequences (B, T + 1): tokens = sequences[:, :-1], targets = "
            "sequences[:, 1:]"
        )


def check_vocabulary(targets: Tensor, size: int) -> None:
    """Raise an InputError if a target that counts is outside a vocabulary of `size`, the number of logits."""
    outside = targets[(targets != IGNORE) & ((targets < 0) | (targets >= size))]
    if outside.numel():
        raise InputError(
            f"targets contain {int(outside[0])}; expected 0..{size - 1} for {size} logits ({IGNORE} leaves a token out)"
        )


def check_logits(logits: object, tokens: Tensor, loop: int) -> Tensor:
    """Return `logits` if they are floating (B, T, V), for tokens (B, T) and exit `loop`.

    Raises:
        InputError: they are not.
    """
    B, T = tokens.shape
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.shape[:-1] != (B, T):
        seen = f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"exit {loop} returned {seen}; expected floating logits ({B}, {T}, V), one row for every token. "
            "Does the readout return something besides the logits, or those of the last token only?"
        )
    return logits
