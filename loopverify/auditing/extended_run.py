"""One run for all parts of an audit: the audited loops, and as many more as growth and overshoot need."""

from __future__ import annotations

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Looped, Trace, unroll

__all__ = ["unroll_extended"]


def unroll_extended(model: Looped, tokens: Tensor, loops: int, wanted: int) -> tuple[Trace, tuple[str, ...]]:
    """Unroll `model` for `wanted` loops, or for as many as it can run, but at least `loops`.

    Returns:
        The trace, and notes that say why it is shorter than wanted.

    Raises:
        InputError: a state is float16, or one of H_0..H_loops is not finite. Errors of the model itself within `loops`
            loops are passed on.
    """
    notes: tuple[str, ...] = ()
    try:
        trace = unroll(model, tokens, wanted)
    except Exception as error:  # a model may be built for a fixed number of loops
        trace = unroll(model, tokens, loops)  # an error within them is the model's own, and raised
        notes = (f"runs of {loops} loops only, not {wanted}: {type(error).__name__}: {error}",)
    if trace.states[0].dtype == torch.float16:
        raise InputError(
            "states are float16, which overflows when an audit multiplies them by a thousand; expected bfloat16 or "
            "float32. Convert the model, or audit it under autocast"
        )
    overflow = _first_overflow(trace)
    if overflow is None:
        return trace, notes
    if overflow <= loops:
        raise InputError(
            f"H_{overflow} is not finite ({_count(trace.states[overflow])}); expected finite states. "
            + (
                "Inspect the embedding"
                if overflow == 0
                else f"Inspect loop {overflow} of the step, which got a finite H_{overflow - 1}"
            )
        )
    return trace.first(overflow - 1), (
        *notes,
        f"H_{overflow} is not finite: growth and overshoot are measured up to loop {overflow - 1}",
    )


def _first_overflow(trace: Trace) -> int | None:
    finite = torch.stack([state.isfinite().all() for state in trace.states]).tolist()
    return finite.index(False) if False in finite else None


def _count(state: Tensor) -> str:
    return f"{int((~state.isfinite()).sum())} of {state.numel()} values"
