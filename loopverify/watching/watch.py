"""Measures the states of a model in training, cheaply enough for every few steps, for changes that the loss may hide.

An audit runs the model to find out what a loop carries and what a loss sees. A look runs nothing: it takes the states
that a training step has computed anyway.

watch = lv.Watch()
for step, (tokens, targets) in enumerate(batches):
    trace = lv.unroll(model, tokens, grad=True)     # or collect H_0..H_K in a forward of your own
    ...
    if step % 100 == 0:
        log(watch.look(step, trace).scalars())
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from loopverify.arguments import check_number
from loopverify.auditing.ledger import Update, updates
from loopverify.auditing.norms import TokenNorms, token_norms
from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.theory import polar

__all__ = ["DriftWarning", "Look", "Watch"]

HEADROOM = 0.1
"""Share of the largest float16 number above which an entry of a state is reported."""


class DriftWarning(UserWarning):
    """The states of a model in training have changed in a way that its loss may not show."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """Measurements of the states of one training step."""

    step: int
    rms: tuple[TokenNorms, ...]
    """Tokenwise norms of H_0..H_K, rms units (||H||_2 / √d)."""
    updates: tuple[Update, ...]
    """Updates of loops 1..K: radial and turning part, rms units."""
    moved: tuple[float, ...]
    """For loops 1..K: rms(H_k − H_{k-1}) / rms(H_{k-1}), median over tokens, which a few huge tokens do not dominate;
    infinite where a loop starts at zero."""
    drift: float
    """Median rms of H_K, relative to that of the first look, or to 1 if that was smaller."""
    largest: float
    """Largest absolute value in any state."""
    findings: tuple[str, ...]
    """Human-readable messages about what was found."""

    def scalars(self) -> dict[str, float]:
        """Flat metrics for a logger: rms@k and p99@k (k = 0..K), a_rad@k, turn@k, moved@k (k = 1..K), drift, largest.

        turn is the angular step rms(u_k − u_{k-1}). Metrics are infinite or NaN where a state is, and moved@k is
        infinite where H_{k-1} is zero; JSON cannot represent such values.
        """
        rms = {f"rms@{k}": norms.mean for k, norms in enumerate(self.rms)}
        p99 = {f"p99@{k}": norms.p99 for k, norms in enumerate(self.rms)}
        a_rad = {f"a_rad@{k}": update.a_rad for k, update in enumerate(self.updates, start=1)}
        turn = {f"turn@{k}": update.angular_step for k, update in enumerate(self.updates, start=1)}
        moved = {f"moved@{k}": share for k, share in enumerate(self.moved, start=1)}
        return {**rms, **p99, **a_rad, **turn, **moved, "drift": self.drift, "largest": self.largest}

    def to_dict(self) -> dict[str, Any]:
        """All fields as dicts, lists, strings and numbers."""
        return asdict(self)


class Watch:
    """Measures the states of a model in training, and warns (`DriftWarning`, once per kind) if

    - the scale of the last state has grown by a factor `drift` since the first look (or from rms 1, if the first was
      smaller, as from small initial weights). A loss behind a normalized readout does not show this (Lemma 1), and each
      loop turns a larger state less (Lemma 2);
    - a loop changes the state by less than rounding to bfloat16 may: in bfloat16, rounding may hide most of that loop;
    - a state comes near the largest float16 number.

    Drift is relative to the first look: in a resumed run, the drift before it is not seen. A block whose outputs are
    initialized to zero changes nothing at step 0, which is reported there.
    """

    def __init__(self, drift: float = 10.0) -> None:
        """
        Raises:
            InputError: `drift` is not a number above 1.
        """
        check_number("drift", drift, "a number > 1, the growth at which to warn", lambda growth: growth > 1)
        self._drift = drift
        self._first: float | None = None
        self._warned: set[str] = set()

    def look(self, step: int, states: Trace | Sequence[Tensor]) -> Look:
        """Measure the states of a training step. Nothing is run, and the step is not affected.

        Args:
            step: the training step, for the record.
            states: a trace, or H_0..H_K, each (B, T, D), before any readout norm.

        Raises:
            InputError: there are fewer than two states, or they are not floating tensors of one shape.
        """
        held = _held(states)
        rms = tuple(token_norms(state.detach(), unit="rms") for state in held)
        if self._first is None and math.isfinite(rms[-1].median):  # drift cannot be relative to an overflow
            self._first = max(1.0, rms[-1].median)
        seen = Look(
            step=step,
            rms=rms,
            updates=updates(held),
            moved=_moved(held),
            drift=rms[-1].median / (self._first or 1.0),
            largest=float(torch.stack([state.detach().abs().max().float() for state in held]).max()),
            findings=(),
        )
        found = dict(self._found(seen))
        for kind, message in found.items():
            if kind not in self._warned:
                warnings.warn(f"step {step}: {message}", DriftWarning, stacklevel=2)
        self._warned |= found.keys()
        return replace(seen, findings=tuple(found.values()))

    def _found(self, seen: Look) -> Iterator[tuple[str, str]]:
        last = len(seen.updates)
        if self._drift <= seen.drift < math.inf:
            yield (
                "drift",
                f"the rms of H_{last} has grown ×{seen.drift:.3g}, to {seen.rms[-1].median:.4g}; "
                "lv.audit(model, tokens, targets) says whether any term of the loss sees it",
            )
        rounding = torch.finfo(torch.bfloat16).eps / 2
        small = [k for k, share in enumerate(seen.moved, start=1) if share < rounding]
        if small:
            yield (
                "rounding",
                f"loop {small[0]} moves the state by {seen.moved[small[0] - 1]:.2g} of its size, less than rounding to "
                f"bfloat16 may ({rounding:.2g}): in bfloat16, rounding may hide most of what the loop adds",
            )
        limit = torch.finfo(torch.float16).max
        if not seen.largest < HEADROOM * limit:
            yield "range", f"the largest entry of a state is {seen.largest:.4g}; float16 ends at {limit:.5g}"


def _moved(states: Sequence[Tensor]) -> tuple[float, ...]:
    with torch.no_grad():
        return tuple(torch.stack([_share(before, after) for before, after in pairwise(states)]).tolist())


def _share(before: Tensor, after: Tensor) -> Tensor:
    """Median over tokens of update over state, in rms; 0 for a token that does not change, even if it is zero."""
    update = polar.scale(polar.at_least_float32(after) - polar.at_least_float32(before))
    return torch.where(update == 0, update, update / polar.scale(before)).median()


def _held(given: Trace | Sequence[Tensor]) -> tuple[Tensor, ...]:
    if not isinstance(given, Trace | Iterable):
        raise InputError(f"states are {given!r}; expected a trace, or H_0..H_K, each (B, T, D)")
    states = tuple(given.states if isinstance(given, Trace) else given)
    if len(states) < 2:
        raise InputError(f"got {len(states)} states; expected H_0..H_K of at least one loop")
    for k, state in enumerate(states):
        tensor = isinstance(state, Tensor)
        if not tensor or not state.is_floating_point() or state.ndim < 2 or state.shape != states[0].shape:
            seen = f"{state.dtype} {tuple(state.shape)}" if tensor else type(state).__name__
            raise InputError(f"H_{k} is {seen}; expected a floating tensor of the shape of H_0, (B, T, D)")
    return states
