"""One run that serves all: the audited loops, and as many more as growth and overshoot ask for."""

from __future__ import annotations

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Looped, Trace, unroll

__all__ = ["long_run"]


def long_run(model: Looped, tokens: Tensor, loops: int, wanted: int) -> tuple[Trace, tuple[str, ...]]:
    """Unroll `model` for `wanted` loops, or as many as it can take but at least `loops`; and say why it took fewer.

    Raises:
        InputError: a state of the first `loops` loops is not finite; besides, whatever these loops raise.
    """
    notes: tuple[str, ...] = ()
    try:
        trace = unroll(model, tokens, wanted)
    except Exception as error:  # a model may know no more loops than it was built for
        trace = unroll(model, tokens, loops)  # raises again what is wrong within them
        notes = (f"runs of {loops} loops only, not {wanted}: {type(error).__name__}: {error}",)
    if trace.states[0].dtype == torch.float16:
        raise InputError(
            "states are float16, which overflows when they are grown a thousandfold; audit the model in bfloat16 or "
            "float32, or under autocast"
        )
    finite = _first_overflow(trace)
    if finite is None:
        return trace, notes
    if finite <= loops:
        raise InputError(
            f"H_{finite} is not finite ({_count(trace.states[finite])}); expected finite states. "
            + (
                "Look at the embedding"
                if finite == 0
                else f"Look at loop {finite} of the step, given a finite H_{finite - 1}"
            )
        )
    return trace.first(finite - 1), (
        *notes,
        f"H_{finite} is not finite: what follows is left out of growth and overshoot",
    )


def _first_overflow(trace: Trace) -> int | None:
    finite = torch.stack([state.isfinite().all() for state in trace.states]).tolist()
    return finite.index(False) if False in finite else None


def _count(state: Tensor) -> str:
    return f"{int((~state.isfinite()).sum())} of {state.numel()} values"
