"""What a readout returns, looked at before anything is made of it."""

from __future__ import annotations

from torch import Tensor

from loopverify.errors import InputError

__all__ = ["check_logits"]


def check_logits(logits: object, tokens: Tensor, loop: int) -> Tensor:
    """The logits (B, T, V) of exit `loop`, for tokens (B, T).

    Raises:
        InputError: something else, with what it is.
    """
    B, T = tokens.shape
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.shape[:-1] != (B, T):
        seen = f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"exit {loop} returned {seen}; expected floating logits ({B}, {T}, V), one row for every token. "
            "Does the readout return them alone, and not only those of the last token?"
        )
    return logits
