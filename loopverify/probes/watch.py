"""A look at the states of a model while it trains, cheap enough for every few steps: what the loss may not show.

An audit asks what a loop carries and what a loss sees, and runs the model to find out. A look runs nothing: it takes
the states that a training step has computed anyway.

watch = lv.Watch()
for step, (tokens, targets) in enumerate(batches):
    trace = lv.unroll(model, tokens, grad=True)     # or collect H_0..H_K in a forward of your own
    ...
    if step % 100 == 0:
        log(watch.look(step, trace).scalars())
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.probes.ledger import Update, updates
from loopverify.probes.norms import TokenNorms, token_norms

__all__ = ["DriftWarning", "Look", "Watch"]

HEADROOM = 0.1
"""Of the largest number of float16, from which on it is said that a state comes near to it."""


class DriftWarning(UserWarning):
    """The states of a model in training have become something that its loss need not show."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """The states of one step."""

    step: int
    rms: tuple[TokenNorms, ...]
    """Of H_0..H_K, rms units (||H||_2 / sqrt(d)) over tokens."""
    updates: tuple[Update, ...]
    """Of loops 1..K: radial and turning part, rms units."""
    drift: float
    """Median rms of H_K over that of the first look, or over 1 if that was less: over what a normalized read shows."""
    largest: float
    """Largest absolute entry of any state."""
    findings: tuple[str, ...]
    """What a user should know, in words."""

    def scalars(self) -> dict[str, float]:
        """Flat numbers for a logger: rms@k and p99@k (k = 0..K), a_rad@k, turn@k, moved@k (k = 1..K), drift, largest.

        turn is the angular step rms(u_k − u_{k-1}), and moved the update over the state it is added to.
        """
        rms = {f"rms@{k}": norms.mean for k, norms in enumerate(self.rms)}
        p99 = {f"p99@{k}": norms.p99 for k, norms in enumerate(self.rms)}
        a_rad = {f"a_rad@{k}": update.a_rad for k, update in enumerate(self.updates, start=1)}
        turn = {f"turn@{k}": update.angular_step for k, update in enumerate(self.updates, start=1)}
        moved = {f"moved@{k}": share for k, share in enumerate(self.moved, start=1)}
        return {**rms, **p99, **a_rad, **turn, **moved, "drift": self.drift, "largest": self.largest}

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return asdict(self)

    @property
    def moved(self) -> tuple[float, ...]:
        """Mean rms of each loop's update over the mean rms of the state it is added to."""
        return tuple(
            update.b_rms / before.mean if before.mean else float("inf")
            for before, update in zip(self.rms, self.updates, strict=False)
        )


class Watch:
    """Looks at the states of a model in training, and warns (`DriftWarning`, once a kind) when

    - the scale of the last state has grown `drift`-fold since the first look (from rms 1, if it was smaller: weights
      are often begun small): a loss behind a normalized readout does not show it (Lemma 1), and each loop turns a
      larger state less (Lemma 2);
    - a loop moves the state by less than rounding to bfloat16 may: run in it, that loop adds little but rounding;
    - a state comes near the largest number of float16.
    """

    def __init__(self, drift: float = 10.0) -> None:
        """
        Raises:
            InputError: a drift that is no growth.
        """
        if not drift > 1:
            raise InputError(f"drift is {drift!r}; expected a number > 1, the growth from which on to warn")
        self._drift = drift
        self._first: float | None = None
        self._warned: set[str] = set()

    def look(self, step: int, states: Trace | Sequence[Tensor]) -> Look:
        """Measure the states of a training step; nothing is run, and nothing of the step is changed.

        Args:
            step: of the training, for the record.
            states: a trace, or H_0..H_K, each (B, T, D), before any readout norm.

        Raises:
            InputError: fewer than two states, or states of another form.
        """
        held = tuple(states.states if isinstance(states, Trace) else states)
        _check(held)
        rms = tuple(token_norms(state.detach(), unit="rms") for state in held)
        self._first = max(1.0, rms[-1].median) if self._first is None else self._first
        seen = Look(
            step=step,
            rms=rms,
            updates=updates(held),
            drift=rms[-1].median / self._first,
            largest=float(torch.stack([state.detach().abs().max().float() for state in held]).max()),
            findings=(),
        )
        found = dict(self._found(seen))
        for kind, words in found.items():
            if kind not in self._warned:
                warnings.warn(f"step {step}: {words}", DriftWarning, stacklevel=2)
        self._warned |= found.keys()
        return replace(seen, findings=tuple(found.values()))

    def _found(self, seen: Look) -> Iterator[tuple[str, str]]:
        last = len(seen.updates)
        if seen.drift >= self._drift:
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
                f"bfloat16 may ({rounding:.2g}): run in it, the loop would add little but rounding",
            )
        limit = torch.finfo(torch.float16).max
        if not seen.largest < HEADROOM * limit:
            yield "range", f"the largest entry of a state is {seen.largest:.4g}; float16 ends at {limit:.5g}"


def _check(states: tuple[Tensor, ...]) -> None:
    if len(states) < 2:
        raise InputError(f"{len(states)} states to look at; expected H_0..H_K of at least one loop")
    for k, state in enumerate(states):
        if not isinstance(state, Tensor) or not state.is_floating_point() or state.shape != states[0].shape:
            seen = f"{state.dtype} {tuple(state.shape)}" if isinstance(state, Tensor) else type(state).__name__
            raise InputError(f"H_{k} is {seen}; expected a floating tensor of the shape of H_0, (B, T, D)")
